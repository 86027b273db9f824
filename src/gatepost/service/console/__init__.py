"""The console at `/console`: pages for the person on call, rendered on the server, usable without JavaScript.

How to add to it, for whoever writes a page:

A page. Make a module beside this one with `router = APIRouter()` and add it to `PAGES` in `app.py`. A handler takes
`view: ViewDep` (`view.py`) and returns `view.page("name.html", title=…, section=…, **context)`:

    @router.get("/endpoints/{endpoint_id}")
    async def endpoint_page(view: ViewDep, endpoint_id: str) -> Response:
        endpoint = await view.endpoint(endpoint_id)          # 404 unless this visitor may see it
        return view.page("endpoint.html", title="Endpoint", section="endpoints", endpoint=endpoint)

Paths have no `/console` in front. `section` is the `key` of an entry of `render.NAVIGATION`, which marks where we are.
Every router in `PAGES` is guarded as a whole: without a session one is sent to the login, and no page can forget it.

Who is looking. `view.access` (`access.py`) is an admin or one tenant. What belongs to a tenant goes through
`view.access.check_sees(tenant)`, a filter of a listing through `view.access.tenant_filter(asked)`, a page about everybody through
`view.access.check_admin()`: each raises not-found, since "not yours" and "not there" must look alike. In templates
`access.admin` and `access.may_change` (False for portal links) say what to offer.

A query. Handlers read through `view.service` (the API's `Service`: `dispatcher`, `store`, `clock`); there is no second way into
the data. Query parameters are FastAPI's. Costs must not grow with the tables: list with a limit and the store's cursor.

A template. `templates/name.html` begins with `{% extends "base.html" %}` and fills `{% block content %}`. Autoescape is on and an
undefined name is an error. Text that users wrote is shown with `{{ text | given }}` (bounded, isolated from its surroundings'
writing direction). The other filters: `when` (UTC microseconds to a `<time>`), `ago`, `duration` (seconds), `size` (bytes), `count`,
`percent`, `rate`, `ident` (ids), `badge` (outcomes, states). Functions: `url("/endpoints", id, tenant=…)`, `static("console.js")`.
The content security policy allows no inline script and no style attribute: write classes of `console.css`, and for drawings SVG
with geometry attributes. A listing is `<div class="table" tabindex="0" role="region" aria-label="…"><table><caption>…`, with
`scope` on its heads.

A live part. Put it into a template of its own, `{% include %}` it into an element with `data-refresh="{{ url(…) }}"` and
`data-every="3000"` (milliseconds), and serve it at that path with `view.fragment("part.html", …)`. The script fetches it while
the page is visible; without the script the page shows what was when it was loaded.

An action. `<form method="post" action="{{ url(…) }}">{{ csrf }} … </form>`, and a handler of `@router.post` that reads
`view.form["field"]`, does it, records it with `view.audit(action, subject, tenant)` and returns `view.done("/endpoints/…", "Paused.")`,
which leads back and says so. Before any POST handler runs, its token was checked and a read-only visitor refused. What cannot be
undone gets a page of its own that asks.

Raise `Problem` (of `api.problems`) or let Gatepost's errors through: they become a page with the same status as in the API.
"""
