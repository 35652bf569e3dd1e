"""A headless Chromium, driven by the DevTools protocol over a pipe."""

import asyncio
import base64
import json
import os
import shutil
import tempfile
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root needs
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)
COMMANDS_FD, EVENTS_FD = 3, 4  # of the browser
MAX_EVENT_BYTES = 64 << 20  # a screenshot
TIMEOUT_S = 30.0
POLL_S = 0.05


@dataclass
class Page:
    """One page with what it has requested and reported."""

    browser: "Browser"
    session: str
    requests: list[str] = field(default_factory=list)  # addresses
    problems: list[str] = field(default_factory=list)  # exceptions, and errors in the console
    loaded: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, method, **parameters):
        return await self.browser.call(method, self.session, **parameters)

    async def open(self, address):
        """Open an address and wait until its scripts have run."""
        self.loaded.clear()
        await self.call("Page.navigate", url=address)
        await asyncio.wait_for(self.loaded.wait(), TIMEOUT_S)

    async def close(self):
        await self.call("Page.close")

    async def resize(self, width, height, *, is_phone=False, scale=1):
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=is_phone,
        )

    async def value(self, expression):
        """Return the value of an expression of JavaScript; raises RuntimeError if it throws."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", "it threw"))
        return found["result"].get("value")

    async def until(self, expression):
        """Wait until an expression is true, and return its value."""
        async with asyncio.timeout(TIMEOUT_S):
            while not (value := await self.value(expression)):  # noqa: ASYNC110  # it is in another process
                await asyncio.sleep(POLL_S)
        return value

    async def text(self, selector):
        return await self.value(f"document.querySelector({json.dumps(selector)}).innerText")

    async def count(self, selector):
        return await self.value(f"document.querySelectorAll({json.dumps(selector)}).length")

    async def click(self, selector):
        await self.value(f"document.querySelector({json.dumps(selector)}).click()")

    async def fill(self, selector, text):
        place = f"document.querySelector({json.dumps(selector)})"
        await self.value(f"{place}.value = {json.dumps(text)}; {place}.dispatchEvent(new Event('input'))")

    async def screenshot(self, path):
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def on_event(self, method, parameters):
        match method:
            case "Page.loadEventFired":
                self.loaded.set()
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(str(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.problems.append(parameters["entry"]["text"])


class Browser:
    def __init__(self, commands, events):
        self._commands = commands
        self._events = events
        self._calls = {}  # futures by the number of their call
        self._pages = {}  # by session

    async def call(self, method, session="", **parameters):
        number = len(self._calls) + 1
        self._calls[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        return await asyncio.wait_for(self._calls[number], TIMEOUT_S)

    async def new_page(self):
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.call(f"{domain}.enable")
        return page

    async def read(self):
        """Deliver responses and events until the browser ends."""
        while True:
            message = json.loads((await self._events.readuntil(b"\0"))[:-1])
            if "id" in message:
                future = self._calls[message["id"]]
                if "error" in message:
                    future.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    future.set_result(message["result"])
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].on_event(message["method"], message["params"])


@asynccontextmanager
async def chromium():
    """Yield a browser with a profile of its own."""
    command_end, commands = os.pipe()
    events, event_end = os.pipe()
    named = f'exec "$0" "$@" {COMMANDS_FD}<&{command_end} {EVENTS_FD}>&{event_end}'
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", named, CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"),
            pass_fds=(command_end, event_end),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(command_end)
        os.close(event_end)
        reader = asyncio.StreamReader(limit=MAX_EVENT_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(events, "rb"))
        browser = Browser(commands, reader)
        reading = asyncio.create_task(browser.read())
        try:
            yield browser
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            transport.close()
            os.close(commands)  # by which the browser ends
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
