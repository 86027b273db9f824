"""The service over real sockets: configuration, API, metrics, log, command line, drain and demo."""
