"""Takes the picture of the page in the browser: python3 docs/page.py PELTON docs/page.png

Needs `pip install playwright` and a Chromium; CHROMIUM is its path where playwright has none of its own.
"""

import os
import re
import subprocess
import sys

from playwright.sync_api import sync_playwright

ASKED = "Tell me a story about the sea."
SEED = 5


def main(pelton: str, out: str) -> None:
    server = subprocess.Popen(
        [pelton, "serve", "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    try:
        lines = iter(server.stderr.readline, "")
        url = next(found[0] for line in lines if (found := re.search(r"http://[\d.]+:\d+", line)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"))
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            # The page itself draws a seed per answer.
            page.route("**/v1/chat/completions", lambda route: route.continue_(
                post_data={**route.request.post_data_json, "seed": SEED, "max_tokens": 120}))
            page.goto(url)
            page.click("#show-settings")
            page.get_by_label("Token probabilities").check()
            page.click("#show-settings")
            page.fill("#draft", ASKED)
            page.click("#send")
            page.get_by_label("Show token probabilities").last.click()
            tokens = page.locator(".token")
            unlikely = [i for i in range(tokens.count()) if "p0" in tokens.nth(i).get_attribute("class")]
            tokens.nth(unlikely[len(unlikely) // 3]).hover()
            page.screenshot(path=out)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
