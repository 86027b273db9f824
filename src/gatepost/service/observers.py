"""Several observers as one. An observer that raises must not end an attempt: it is logged once and the others still hear."""

from __future__ import annotations

import logging

from gatepost.telemetry import AttemptObservation, DeliveryObservation, Observer, OperationalObservation

log = logging.getLogger("gatepost.observers")


class Observers:
    """Calls each observer in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        # Bound once: looking three methods up at each of four observers is a tenth of what all of them cost.
        self._finished = [(observer.attempt_finished, observer) for observer in observers]
        self._decided = [(observer.delivery_decided, observer) for observer in observers]
        self._complained: set[int] = set()

    def attempt_finished(self, observation: AttemptObservation) -> None:
        """Pass it on."""
        for hear, observer in self._finished:
            try:
                hear(observation)
            except Exception:  # noqa: BLE001 - a foreign observer must not break a delivery
                self._complain(observer)

    def delivery_decided(self, observation: DeliveryObservation) -> None:
        """Pass it on."""
        for hear, observer in self._decided:
            try:
                hear(observation)
            except Exception:  # noqa: BLE001
                self._complain(observer)

    def operational(self, observation: OperationalObservation) -> None:
        """Pass it on."""
        for observer in self._observers:
            try:
                observer.operational(observation)
            except Exception:  # noqa: BLE001
                self._complain(observer)

    def _complain(self, observer: Observer) -> None:
        if id(observer) not in self._complained:
            self._complained.add(id(observer))
            log.exception("observer %s raised; further errors of it are not logged", type(observer).__name__)
