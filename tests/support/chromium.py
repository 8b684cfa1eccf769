"""A page opened in Qt's Chromium, without a window: ``python chromium.py PAGE PICTURE WIDTH...`` prints what was found as JSON.

PAGE is a file, or the address of a local server. At each width, a line and a picture, named by the width. ``dark`` asks for dark colours, ``whole`` for pictures of the whole page.
A process of its own, as a browser has to have the main thread.
"""

import json
import os
import sys

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--disable-gpu --no-sandbox")
# 0 stands for dark; Qt reads the variable when the application starts.
os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] += " --blink-settings=preferredColorScheme=0" * (
    "dark" in sys.argv
)

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

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


def main(address, picture, *widths):
    application = QApplication(sys.argv[:1])
    view, page, requests = QWebEngineView(), Page(), Requests()
    page.profile().setUrlRequestInterceptor(requests)
    view.setPage(page)
    remaining = [int(width) for width in widths]
    view.resize(remaining[0], 900)
    view.show()

    def start():
        view.resize(remaining[0], 900)
        QTimer.singleShot(400, lambda: page.runJavaScript(LOOK, look))

    def look(found):
        seen = json.loads(found)
        seen["console"] = page.messages
        local = ("file:", "data:", "blob:", "http://127.0.0.1:")
        seen["outside"] = [url for url in requests.urls if not url.startswith(local)]
        print(json.dumps(seen), flush=True)
        if "whole" in sys.argv:
            view.resize(remaining[0], min(seen["height"], 16_000))
        QTimer.singleShot(4000 if "whole" in sys.argv else 200, grab)

    def grab():
        view.grab().save(f"{picture}-{remaining.pop(0)}.png")
        if remaining:
            start()
        else:
            os._exit(0)  # Qt's own end is slow, and noisy without a display

    def loaded(ok):
        if not ok:
            print("the page did not load", file=sys.stderr)
            os._exit(1)
        start()

    page.loadFinished.connect(loaded)
    page.load(QUrl(address) if address.startswith("http:") else QUrl.fromLocalFile(address))
    QTimer.singleShot(60_000, lambda: os._exit(3))
    application.exec()


if __name__ == "__main__":
    main(*(argument for argument in sys.argv[1:] if argument not in ("dark", "whole")))
