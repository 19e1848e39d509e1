"""Records events that must not happen on any page."""

from collections.abc import Collection

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Response

#: Types of console messages that are problems.
LOUD = ("error", "warning")


class Watch:
    """Records dialogs, script errors, violations of the Content-Security-Policy and error responses."""

    def __init__(self, context: BrowserContext, may_answer: Collection[int] = ()) -> None:
        #: The problems, each once, in the order in which they occurred.
        self.problems: dict[str, None] = {}
        self._expected = may_answer
        context.on("dialog", self._on_dialog)
        context.on("weberror", lambda error: self._note(f"script: {error.error}"))
        context.on("console", self._on_console)
        context.on("response", self._on_response)

    def _note(self, problem: str) -> None:
        self.problems[problem] = None

    def _on_dialog(self, dialog: Dialog) -> None:
        self._note(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_console(self, message: ConsoleMessage) -> None:
        expected = any(f"status of {status} " in message.text for status in self._expected)
        # The browser requests the icon although no page links to it.
        is_of_icon = message.location["url"].endswith("/favicon.ico")
        if message.type in LOUD and not expected and not is_of_icon:
            self._note(f"console {message.type}: {message.text} ({message.page and message.page.url})")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self._expected:
            self._note(f"{response.status}: {response.request.method} {response.url}")
