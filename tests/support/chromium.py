"""A page opened in Qt's Chromium, without a window: ``python chromium.py PAGE PICTURE`` prints what was found as JSON.

A process of its own, as a browser has to have the main thread.
"""

import json
import os
import sys

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--disable-gpu --no-sandbox")

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

LOOK = """
(() => {
  const images = [...document.images];
  const shown = images.filter(i => i.complete && i.naturalWidth > 100 && i.getBoundingClientRect().width > 100);
  return JSON.stringify({
    title: document.title,
    headings: [...document.querySelectorAll('h2')].map(h => h.innerText),
    images: images.length,
    shown: shown.length,
    width: document.documentElement.scrollWidth,
    viewport: window.innerWidth,
    links: [...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash)),
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


def main(page_path, picture):
    application = QApplication(sys.argv[:1])
    view, page, requests = QWebEngineView(), Page(), Requests()
    page.profile().setUrlRequestInterceptor(requests)
    view.setPage(page)
    view.resize(1100, 900)
    view.show()

    def done(found):
        seen = json.loads(found)
        seen["console"] = page.messages
        seen["outside"] = [u for u in requests.urls if not u.startswith(("file:", "data:"))]
        view.grab().save(picture)
        print(json.dumps(seen), flush=True)
        os._exit(0)  # Qt's own end is slow, and noisy without a display

    def loaded(ok):
        if not ok:
            print("the page did not load", file=sys.stderr)
            os._exit(1)
        QTimer.singleShot(300, lambda: page.runJavaScript(LOOK, done))

    page.loadFinished.connect(loaded)
    page.load(QUrl.fromLocalFile(page_path))
    QTimer.singleShot(60_000, lambda: os._exit(3))
    application.exec()


if __name__ == "__main__":
    main(*sys.argv[1:])
