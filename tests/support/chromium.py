"""Pages opened in Qt's Chromium, without a window; what was found on each at each width is printed as a line of JSON.

PAGE is a file, or the address of a local server. ``--picture`` leaves a picture of the (last) page at each width, ``--whole`` of all of it.
A process of its own, as a browser has to have the main thread.
"""

import argparse
import json
import os
import sys

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--disable-gpu --no-sandbox")
# 0 stands for dark; Qt reads the variable when the application starts.
os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] += " --blink-settings=preferredColorScheme=0" * (
    "--dark" in sys.argv
)

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("pages", nargs="+", metavar="PAGE")
PARSER.add_argument("--widths", type=int, nargs="+", default=[1280, 400])
PARSER.add_argument("--picture")
PARSER.add_argument("--dark", action="store_true", help="ask for dark colours")
PARSER.add_argument("--whole", action="store_true")
PAGE_SECONDS = 30

LOOK = """
(() => {
  // Scrolls by itself, or is a drawer or dialogue outside the page's flow.
  const apart = e => {
    for (let p = e; p && p !== document.body; p = p.parentElement) {
      const style = getComputedStyle(p);
      if (style.position === 'fixed' || style.visibility === 'hidden') return true;
      if (p !== e && ['auto', 'scroll', 'hidden'].includes(style.overflowX)) return true;
    }
    return false;
  };
  const images = [...document.images];
  const shown = images.filter(i => i.complete && i.naturalWidth > 100 && i.getBoundingClientRect().width > 100);
  return JSON.stringify({
    title: document.title,
    headings: [...document.querySelectorAll('h2')].map(h => h.innerText),
    images: images.length,
    shown: shown.length,
    width: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    viewport: window.innerWidth,
    beyond: [...document.querySelectorAll('body *')].filter(
      e => e.getBoundingClientRect().right > window.innerWidth + 1 && !apart(e)).map(e => e.tagName + '.' + e.className),
    unlabelled: images.filter(i => !i.alt).length,
    dark: matchMedia('(prefers-color-scheme: dark)').matches,
    links: [...new Set([...document.links].map(a => a.href))],
    // Links to places on this page that do not exist.
    dangling: [...document.links].filter(
      a => a.hash.length > 1 && a.href.split('#')[0] === location.href.split('#')[0]
        && !document.getElementById(decodeURIComponent(a.hash.slice(1)))).map(a => a.hash),
    text: document.body.innerText.length,
  });
})()
"""


class Page(QWebEnginePage):
    def __init__(self):
        super().__init__()
        self.messages = []

    def javaScriptConsoleMessage(self, level, message, line, source):
        self.messages.append(message)


class Requests(QWebEngineUrlRequestInterceptor):
    def __init__(self):
        super().__init__()
        self.urls = []

    def interceptRequest(self, info):
        self.urls.append(info.requestUrl().toString()[:200])


def main(pages, widths, picture, dark, whole):
    application = QApplication(sys.argv[:1])
    view, page, requests = QWebEngineView(), Page(), Requests()
    page.profile().setUrlRequestInterceptor(requests)
    view.setPage(page)
    view.show()
    remaining = [(address, list(widths)) for address in pages]
    watch = QTimer(singleShot=True, interval=1000 * PAGE_SECONDS)

    def stop(code, message=""):
        print(message, file=sys.stderr)
        os._exit(code)  # Qt's own end is slow, and noisy without a display

    def load():
        if not remaining:
            stop(0)
        address, _ = remaining[0]
        page.messages, requests.urls = [], []
        view.resize(widths[0], 900)
        watch.start()
        page.load(QUrl(address) if address.startswith("http:") else QUrl.fromLocalFile(address))

    def loaded(ok):
        start() if ok else stop(1, f"{remaining[0][0]} did not load")

    def start():
        view.resize(remaining[0][1][0], 900)
        QTimer.singleShot(400, lambda: page.runJavaScript(LOOK, look))

    def look(found):
        seen = json.loads(found)
        seen["page"], seen["console"] = remaining[0][0], page.messages
        local = ("file:", "data:", "blob:", "http://127.0.0.1:")
        seen["outside"] = [url for url in requests.urls if not url.startswith(local)]
        print(json.dumps(seen), flush=True)
        if whole:
            view.resize(remaining[0][1][0], min(seen["height"], 16_000))
        if picture:
            QTimer.singleShot(4000 if whole else 200, grab)
        else:
            go_on()

    def grab():
        view.grab().save(f"{picture}-{remaining[0][1][0]}.png")
        go_on()

    def go_on():
        remaining[0][1].pop(0)
        if remaining[0][1]:
            start()
        else:
            remaining.pop(0)
            load()

    watch.timeout.connect(lambda: stop(3, f"{remaining[0][0]} took too long"))
    page.loadFinished.connect(loaded)
    load()
    application.exec()


if __name__ == "__main__":
    main(**vars(PARSER.parse_args()))
