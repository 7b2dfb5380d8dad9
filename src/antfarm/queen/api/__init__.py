"""The OpenAI edge: `create_app` makes the app, `bind` takes its port, `ApiServer` serves it."""

from antfarm.queen.api.app import create_app
from antfarm.queen.api.models import Source
from antfarm.queen.api.server import ApiServer, bind, exposed

__all__ = ["ApiServer", "Source", "bind", "create_app", "exposed"]
