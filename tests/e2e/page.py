"""The web page of the real binary in headless Chromium.

usage: page.py PELTON [--pictures FOLDER] [--only WORD]

The browser is $CHROMIUM, or `chromium`, `chromium-browser` or `google-chrome` of the path. Where
there is none, the run prints a NOTE and ends with 0, or with an error where E2E_PAGE=required. Every check is a function whose name
says what must hold; each gets a fresh context of the browser, without storage. A check fails when
the page asks anything of another host, breaks its own Content-Security-Policy, or throws.
"""

import argparse
import json
import os
import shutil
import sys
import time
import traceback
import urllib.request
from pathlib import Path

from openai_client import Server, wait_for

KEY = "sk-page"
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}


class Visit:
    """One context of the browser on the page of one server, and what went wrong in it."""

    def __init__(self, browser, server, **options):
        self.server, self.faults, self.asked = server, [], []
        options.setdefault("viewport", DESKTOP)
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(30_000)
        self.context.route("**/*", self._let_through)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.faults.append(f"threw: {error}"))
        self.page.on("console", self._said)
        self.page.on("request", lambda request: self.asked.append(request))

    def _let_through(self, route):
        url = route.request.url
        if url.startswith((self.server.address + "/", "blob:", "data:")):
            return route.continue_()
        self.faults.append(f"asked {url}")
        return route.abort()

    def _said(self, message):
        if "Content Security Policy" in message.text or "TrustedHTML" in message.text:
            self.faults.append(message.text)

    def open(self, path="/"):
        self.page.goto(self.server.address + path)
        self.page.locator("html[data-ready]").wait_for(state="attached")
        return self.page

    def close(self):
        self.context.close()
        assert not self.faults, self.faults


def until(page, expression):
    """Waits until an expression is true in the page, whose policy forbids what Playwright has for it."""
    return wait_for(lambda: page.evaluate(expression), 60, expression)


def answers(page):
    return page.locator(".message.assistant")


def say(page, text):
    page.fill("#draft", text)
    page.press("#draft", "Enter")


def ended(page, n=1):
    """Waits until answer number `n` has its figures."""
    page.locator(".message.assistant .stats").nth(n - 1).wait_for()
    page.locator("#send").wait_for(state="visible")


def set_field(page, name, value):
    page.evaluate(
        """([name, value]) => {
            const kept = JSON.parse(localStorage.getItem("pelton-settings") ?? "{}");
            localStorage.setItem("pelton-settings", JSON.stringify({ ...kept, [name]: value }));
        }""",
        [name, value],
    )


def short(visit, n_tokens=12, **more):
    """The page with short answers."""
    page = visit.open()
    for name, value in {"max_tokens": str(n_tokens), "seed": "7", **more}.items():
        set_field(page, name, value)
    page.reload()
    page.locator("html[data-ready]").wait_for(state="attached")
    return page


def stream(*deltas, finish="stop"):
    """The body of a stream of chat chunks."""
    lines = []
    for delta in deltas:
        delta = delta if isinstance(delta, dict) else {"content": delta}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        lines.append({"choices": [choice]})
    lines.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    usage = {"prompt_tokens": 3, "completion_tokens": len(deltas), "total_tokens": 9}
    lines.append({"choices": [], "usage": usage})
    return "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"


def with_answer(visit, *deltas):
    """The page, where the next chats are answered by these pieces."""
    page = visit.open()
    body = stream(*deltas)
    fulfil = lambda route: route.fulfill(content_type="text/event-stream", body=body)
    page.route("**/v1/chat/completions", fulfil)
    return page


# The chat.


def a_chat_streams(visit):
    page = short(visit, 400)
    # A line slow enough for several pictures of the screen, however fast the model is.
    line = {"offline": False, "latency": 0, "downloadThroughput": 20_000, "uploadThroughput": -1}
    page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", line)
    page.evaluate(
        """() => {
            window.lengths = new Set();
            const look = () => lengths.add(document.querySelector(".message.assistant .body")?.innerText.length);
            new MutationObserver(look).observe(document.getElementById("log"), { childList: true, subtree: true, characterData: true });
        }"""
    )
    say(page, "Tell me a story.")
    ended(page)
    lengths = page.evaluate("lengths.size")
    assert lengths >= 4, f"the answer came in {lengths} pieces"
    stats = page.locator(".stats").inner_text()
    assert "tokens ·" in stats and "tokens/s" in stats and "first after" in stats, stats
    assert page.locator(".conversations .title").count() == 1


def stop_stops_and_keeps_what_there_is(visit):
    page = short(visit, 1900, mode="completion")
    page.evaluate(
        """() => {
            const look = () => {
                if (document.querySelector(".message.assistant .body")?.innerText.length > 60) document.getElementById("stop").click();
            };
            new MutationObserver(look).observe(document.getElementById("log"), { childList: true, subtree: true, characterData: true });
        }"""
    )
    say(page, "Tell me a long story.")
    page.get_by_text("Stopped.").wait_for()
    page.locator("#send").wait_for(state="visible")
    wait_for(visit.server.is_idle, 30, "the server to stop")
    text = answers(page).first.inner_text()
    assert len(text) > 60, text
    page.wait_for_timeout(300)
    assert answers(page).first.inner_text() == text, "it went on"


def an_answer_made_again_and_an_edited_message_are_further_versions(visit):
    page = short(visit, 8, temperature="0")
    say(page, "One wolf.")
    ended(page)
    first = page.locator(".message.assistant .body").inner_text()
    page.get_by_role("button", name="Answer again").click()
    page.get_by_text("2/2").wait_for()
    ended(page)
    assert page.locator(".message.assistant .body").inner_text() == first, "temperature 0"
    say(page, "And then?")
    ended(page, 2)
    page.get_by_role("button", name="Edit message").first.click()
    field = page.get_by_role("textbox", name="Edited message")
    assert field.input_value() == "One wolf."
    field.fill("Two old bears.")
    field.press("Control+Enter")
    page.locator(".message.user", has_text="Two old bears.").wait_for()
    ended(page)
    assert page.locator(".message").count() == 2, "the rest belongs to the other version"
    page.get_by_role("button", name="Earlier version").first.click()
    page.locator(".message.user", has_text="And then?").wait_for()
    assert page.locator(".message").count() == 4


def reload_keeps_history_and_conversations_can_be_renamed_exported_and_deleted(visit):
    page = short(visit, 5)
    say(page, "First of two.")
    ended(page)
    text = answers(page).first.locator(".body").inner_text()
    page.click("#new-chat")
    say(page, "Second of two.")
    ended(page)
    page.reload()
    page.locator(".message").first.wait_for()
    titles = page.locator(".conversations .title").all_inner_texts()
    assert titles == ["Second of two.", "First of two."], titles
    page.get_by_role("button", name="First of two.", exact=True).click()
    page.locator(".message.user", has_text="First of two.").wait_for()
    assert answers(page).first.locator(".body").inner_text() == text
    page.get_by_role("button", name="Rename, export or delete First of two.").click()
    page.get_by_label("Title").fill("The sea")
    page.get_by_label("Title").press("Enter")
    page.get_by_role("button", name="The sea", exact=True).wait_for()
    with page.expect_download() as download:
        page.click("#export")
    path = download.value.path()
    exported = json.loads(Path(path).read_text())
    assert [one["title"] for one in exported["conversations"]] == ["Second of two.", "The sea"]
    page.get_by_role("button", name="Rename, export or delete The sea").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("dialog", name="Delete this conversation?").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="The sea", exact=True).wait_for(state="detached")
    page.locator("input[type=file]").set_input_files(path)
    page.get_by_text("2 conversations imported.").wait_for()
    page.get_by_role("button", name="OK").click()
    page.get_by_role("button", name="The sea", exact=True).click()
    page.locator(".message.user", has_text="First of two.").wait_for()
    assert answers(page).first.locator(".body").inner_text() == text


def a_bad_file_is_refused_with_its_reason(visit):
    page = visit.open()
    node = {"role": "user", "content": "x", "parent": "a"}
    for content, reason in [
        ("{", "no JSON"),
        ('{"pelton": "other"}', "no conversations"),
        ('{"pelton": "conversations", "version": 9, "conversations": []}', "version 9"),
        (json.dumps({"pelton": "conversations", "version": 1, "conversations": [{"nodes": {"a": node}}]}), "follows itself"),
        ('{"pelton": "conversations", "version": 1, "conversations": [{"nodes": {"__proto__": {}}}]}', "malformed"),
    ]:
        file = {"name": "a.json", "mimeType": "application/json", "buffer": content.encode()}
        page.locator("input[type=file]").set_input_files([file])
        page.get_by_role("dialog").get_by_text(reason).wait_for()
        page.get_by_role("button", name="OK").click()
    assert page.locator(".conversations .title").count() == 0


def settings_reach_the_server_and_a_bad_one_is_pointed_at(visit):
    page = visit.open()
    page.click("#show-settings")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Top P").fill("0.9")
    page.get_by_label("Top K").fill("40")
    page.get_by_label("Most tokens").fill("6")
    page.get_by_label("Seed").fill("3")
    page.get_by_label("Stop texts").fill("zzz\nyyy")
    page.get_by_label("Answer as JSON of a schema").check()
    page.get_by_label("JSON schema").fill('{"type": "boolean"}')
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "Is it so?")
    body = sent.value.post_data_json
    expected = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "max_tokens": 6, "seed": 3, "stop": ["zzz", "yyy"], "stream": True}
    assert {name: body.get(name) for name in expected} == expected, body
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}, body
    assert body["response_format"]["json_schema"]["schema"] == {"type": "boolean"}, body
    ended(page)
    assert answers(page).first.locator(".markdown").last.inner_text().strip() in ("true", "false")
    page.get_by_label("JSON schema").fill("{")
    say(page, "And now?")
    page.get_by_role("alert").get_by_text("no JSON").wait_for()
    assert page.get_by_label("JSON schema").get_attribute("aria-invalid") == "true"


def token_probabilities_are_shown_with_what_else_was_likely(visit):
    page = short(visit, 6, logprobs=True)
    say(page, "Tell me a story.")
    ended(page)
    page.get_by_role("button", name="Show token probabilities").click()
    tokens = page.locator(".token")
    assert tokens.count() == 6, tokens.count()
    tokens.nth(2).hover()
    tip = page.locator(".tip")
    tip.wait_for()
    assert tip.locator(".line").count() >= 5 and "%" in tip.inner_text(), tip.inner_text()
    page.mouse.move(5, 5)
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator(".token.chosen").inner_text() == tokens.nth(1).inner_text()
    assert tip.is_visible()


def a_text_is_completed_without_a_template(visit):
    page = short(visit, 8, mode="completion", temperature="0")
    with page.expect_request("**/v1/completions") as sent:
        say(page, "Once upon a time")
    assert sent.value.post_data_json["prompt"] == "Once upon a time"
    ended(page)
    text = answers(page).first.locator(".plain").inner_text()
    with page.expect_request("**/v1/completions") as sent:
        say(page, "")
    assert sent.value.post_data_json["prompt"].startswith("Once upon a time")
    assert sent.value.post_data_json["prompt"].rstrip() == ("Once upon a time" + text).rstrip() or text
    ended(page, 2)


# Texts of models.

EVIL = """<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>

[link](javascript:alert(1)) and [data](data:text/html,<script>1</script>) ![picture](https://elsewhere.example/p.png)

| <b>a</b> | b |
|---|---|
| <svg onload=alert(1)> | https://elsewhere.example/q |

```html
<img src=y onerror=alert(2)>
```
"""


def text_of_a_model_stays_text(visit):
    page = with_answer(visit, {"reasoning": "<img src=z onerror=alert(3)>"}, *[EVIL[i : i + 7] for i in range(0, len(EVIL), 7)])
    say(page, '<img src=u onerror="alert(4)">')
    ended(page)
    assert page.title() == "Pelton"
    inside = page.locator(".message")
    assert inside.locator("img, script, svg:not(.sign), iframe, b").count() == 0
    assert '<img src=x onerror="document.title=\'owned\'">' in page.locator(".markdown").last.inner_text()
    links = [link.get_attribute("href") for link in inside.locator("a").all()]
    assert links and all(link.startswith("https://elsewhere.example/") for link in links), links
    assert all("noopener" in link.get_attribute("rel") for link in inside.locator("a").all())


MARKDOWN = """# Title

A *word*, **two words**, `code`, ~~gone~~, snake_case_name and 2 * 3 * 4.

1. one
2. two
   - inner

> quoted

```python
def f(x): # a comment
    return "text"
```

| a | b |
|---|--:|
| 1 | 2 |
"""


def markdown_is_shown_and_code_is_copied(visit):
    page = with_answer(visit, {"reasoning": "Thinking about it."}, *[MARKDOWN[i : i + 9] for i in range(0, len(MARKDOWN), 9)])
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(page, "Show me Markdown.")
    ended(page)
    shown = page.locator(".message.assistant .markdown").last
    for tag, text in [("h3", "Title"), ("em", "word"), ("strong", "two words"), ("del", "gone"), ("ol > li ul > li", "inner"), ("blockquote", "quoted"), ("td.end", "2"), (".hl-comment", "# a comment"), (".hl-string", '"text"')]:
        found = shown.locator(tag).first.inner_text()
        assert found == text, (tag, found)
    assert "snake_case_name and 2 * 3 * 4." in shown.inner_text()
    assert shown.locator("ol > li").count() == 2
    thought = page.locator("details.thought")
    assert not thought.evaluate("element => element.open") and thought.locator("summary").inner_text() == "Thoughts"
    page.get_by_role("button", name="Copy code").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == 'def f(x): # a comment\n    return "text"', repr(copied)


def hostile_markdown_takes_little_time(visit):
    page = visit.open()
    for text in ["*a " * 12000, "[" * 40000, "`" * 40000, "> " * 20000, "- " * 20000 + "x", "**_" * 12000, "|" * 30000 + "\n" + "|-" * 15000, "<" * 40000, "(" * 100 + "[a](" * 9000]:
        took = page.evaluate(
            """async (text) => {
                const { Rendered } = await import("/page/markdown.js");
                const began = performance.now();
                new Rendered().show(text);
                return performance.now() - began;
            }""",
            text,
        )
        assert took < 4000, f"{text[:10]!r}: {took:.0f} ms"


def tool_calls_are_shown_and_their_results_sent(visit):
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    page = with_answer(visit, {"tool_calls": [call]}, {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Rome"}'}}]})
    say(page, "How is the weather in Rome?")
    page.locator(".call").wait_for()
    assert "weather" in page.locator(".call .bar").inner_text() and '"city": "Rome"' in page.locator(".call pre").inner_text()
    page.get_by_label("Result of weather").fill("Sunny.")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.get_by_role("button", name="Send result").click()
    messages = sent.value.post_data_json["messages"]
    assert messages[-1] == {"role": "tool", "content": "Sunny.", "tool_call_id": "call-1"}, messages
    assert messages[-2]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}', messages


# Errors.


def a_busy_server_is_tried_again_after_its_time(visit):
    page = visit.open()
    error = {"error": {"message": "too many requests wait", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}}
    fulfil = lambda route: route.fulfill(status=429, headers={"retry-after": "2"}, json=error)
    page.route("**/v1/chat/completions", fulfil, times=1)
    say(page, "Hello")
    button = page.locator(".problem button")
    button.wait_for()
    assert button.is_disabled() and "in 2 s" in button.inner_text() and "too many requests wait" in page.locator(".problem").inner_text()
    until(page, "!document.querySelector('.problem button').disabled")
    page.click("#show-settings")
    page.get_by_label("Most tokens").fill("4")
    button.click()
    ended(page)
    assert page.locator(".problem").count() == 0 and page.locator(".message").count() == 2


def a_refusal_names_its_field(visit):
    page = short(visit, 4, temperature="-1")
    say(page, "Hello")
    problem = page.get_by_role("alert").filter(has_text="refused")
    problem.wait_for()
    assert "temperature" in problem.inner_text(), problem.inner_text()


def a_server_that_goes_away_is_said_and_found_again(visit):
    page = visit.open()
    page.route("**/v1/chat/completions", lambda route: route.abort())
    page.route("**/health", lambda route: route.abort())
    say(page, "Hello")
    page.locator("#away").wait_for()
    page.locator(".problem", has_text="No connection").wait_for()
    page.unroute("**/health")
    page.locator("#away").wait_for(state="hidden")


def a_key_is_asked_for_and_kept_in_this_tab_alone(browser, keyed):
    visit = Visit(browser, keyed)
    visit.page.goto(keyed.address)
    page = visit.page
    field = page.get_by_label("API key", exact=True).and_(page.locator("input"))
    field.fill("wrong")
    field.press("Enter")
    page.get_by_text("does not know this key").wait_for()
    field.fill(KEY)
    field.press("Enter")
    page.locator("#model:not(:disabled)").wait_for()
    page.click("#show-settings")
    page.get_by_label("Most tokens").fill("4")
    say(page, "Hello")
    ended(page)
    assert all(KEY not in request.url for request in visit.asked)
    kept = page.evaluate("[JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage}), document.cookie, location.href]")
    assert [KEY in text for text in kept] == [False, True, False, False], kept
    page.reload()
    page.locator("#model:not(:disabled)").wait_for()
    page.click("#tab-engine")
    page.locator(".card").first.wait_for()
    other = visit.context.new_page()
    other.goto(keyed.address)
    other.get_by_text("This server asks for an API key.").wait_for()
    visit.close()


# How it looks and is used.


def colours_follow_the_system_and_the_switch(visit):
    page = visit.open()
    colour = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = colour()
    page.emulate_media(color_scheme="dark")
    dark = colour()
    assert light != dark, light
    page.get_by_role("button", name="Light colours").click()
    assert colour() == light
    page.reload()
    assert colour() == light, "the choice is remembered"
    page.get_by_role("button", name="Dark colours").click()
    page.emulate_media(color_scheme="light")
    assert colour() == dark


def a_phone_needs_no_sideways_scrolling(browser, server):
    visit = Visit(browser, server, viewport=PHONE, has_touch=True, is_mobile=True)
    page = with_answer(visit, MARKDOWN + "\n```\n" + "x" * 300 + "\n```\n" + "y" * 300 + "\n\n|" + " a |" * 30 + "\n|" + "---|" * 30 + "\n")
    fits = lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth && document.body.scrollWidth <= innerWidth")
    assert fits()
    assert not page.locator("#sidebar").is_visible()
    page.fill("#draft", "Hello")
    page.click("#send")
    ended(page)
    assert fits()
    log = page.locator("#log")
    assert log.evaluate("element => element.scrollWidth <= element.clientWidth"), "the conversation scrolls sideways"
    for button in ("#show-list", "#show-settings", "#tab-engine"):
        page.click(button)
        assert fits(), button
    page.locator(".card").first.wait_for()
    assert fits()
    small = page.evaluate(
        """[...document.querySelectorAll("button")].filter((b) => b.offsetParent && b.getBoundingClientRect().height < 28).map((b) => b.outerHTML)"""
    )
    assert not small, small
    visit.close()


def everything_works_by_keyboard(visit):
    page = short(visit, 6)
    focused = lambda: page.evaluate("(e => e.id || e.getAttribute('aria-label') || e.innerText)(document.activeElement)")
    page.locator("body").focus()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    assert focused() == "Skip to the content", focused()
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.append(focused())
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement.closest('.field') ?? document.activeElement).boxShadow")
        assert outline != "nonenone", f"{seen[-1]} shows no focus"
        if seen[-1] == "draft":
            break
    for one in ("tab-chat", "model", "set-theme", "show-settings", "new-chat", "draft"):
        assert one in seen, (one, seen)
    page.keyboard.type("Hello there")
    page.keyboard.press("Enter")
    ended(page)
    for _ in range(6):
        page.keyboard.press("Shift+Tab")
        if focused() == "Answer again":
            break
    assert focused() == "Answer again", focused()
    page.keyboard.press("Enter")
    page.get_by_text("2/2").wait_for()
    page.locator("#tab-chat").focus()
    page.keyboard.press("ArrowRight")
    assert focused() == "tab-engine" and page.locator("#view-engine").is_visible()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#view-chat").is_visible()


def names_and_roles_are_there_for_screen_readers(visit):
    page = short(visit, 4)
    say(page, "Hello")
    ended(page)
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input:not([type=file]), select, textarea, a")]
            .filter((e) => e.offsetParent && !(e.getAttribute("aria-label") || e.innerText?.trim() || e.labels?.length))
            .map((e) => e.outerHTML)"""
    )
    assert not nameless, nameless
    twice = page.evaluate("(ids => ids.filter((id, i) => ids.indexOf(id) < i))([...document.querySelectorAll('[id]')].map(e => e.id))")
    assert not twice, twice
    for role, name in [("tablist", "Views"), ("log", "Conversation"), ("navigation", "Conversations"), ("main", None), ("status", None)]:
        assert page.get_by_role(role, name=name).count() >= 1, role
    assert page.locator("#announcer").inner_text() == "The answer is complete"


def the_engine_shows_numbers_that_move(visit):
    page = visit.open()
    figures = lambda title: page.locator(f'.card[aria-label="{title}"] .figure b').all_inner_texts()
    first = lambda title: float(figures(title)[0].replace("\u202f", ""))
    page.click("#tab-engine")
    page.locator(".card").first.wait_for()
    wait_for(lambda: first("Requests") == 0, 30, "a server at rest")
    before = page.locator(".state").inner_text()
    body = {"prompt": "Once upon a time", "n": 48, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(visit.server.address + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        answer.read(1000)
        wait_for(lambda: first("Requests") == 1, 30, "a running request")
        wait_for(lambda: first("Tokens per second") > 0, 30, "a speed")
        wait_for(lambda: first_share(figures("KV memory in use")[0]) > 0, 30, "memory in use")
    wait_for(lambda: first("Requests") == 0, 30, "the request to end")
    wait_for(lambda: figures("Time to first token")[0].endswith("s"), 30, "a time to the first token")
    assert "tokens generated" in before and page.locator(".state").inner_text() != before
    assert page.locator(".card[aria-label='Requests'] path.one:not(.area)").get_attribute("d").count("L") > 3
    assert "story" in page.locator(".tables").inner_text()


def first_share(text):
    return float(text.removesuffix(" %"))


def the_page_is_small_cached_and_can_be_turned_off(browser, server):
    visit = Visit(browser, server)
    sizes = []
    visit.page.on("response", lambda response: sizes.append((response.url, response.status, response)))
    page = visit.open()
    total = sum(len(response.body()) for url, status, response in sizes if status == 200 and ("/page/" in url or url.endswith("/")))
    assert 20_000 < total < 150_000, total
    head = next(response for url, _, response in sizes if url.endswith("/"))
    policy = head.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy, policy
    tag = head.headers["etag"]
    again = page.request.get(server.address + "/", headers={"if-none-match": tag})
    assert again.status == 304 and again.headers["etag"] == tag, again.status
    visit.close()
    without = Server(server.pelton, flags=["--page", "false"])
    try:
        assert without.get("/")[0] == 404 and without.get("/page/app.js")[0] == 404
    finally:
        without.kill()


CHECKS = [
    a_chat_streams,
    stop_stops_and_keeps_what_there_is,
    an_answer_made_again_and_an_edited_message_are_further_versions,
    reload_keeps_history_and_conversations_can_be_renamed_exported_and_deleted,
    a_bad_file_is_refused_with_its_reason,
    settings_reach_the_server_and_a_bad_one_is_pointed_at,
    token_probabilities_are_shown_with_what_else_was_likely,
    a_text_is_completed_without_a_template,
    text_of_a_model_stays_text,
    markdown_is_shown_and_code_is_copied,
    hostile_markdown_takes_little_time,
    tool_calls_are_shown_and_their_results_sent,
    a_busy_server_is_tried_again_after_its_time,
    a_refusal_names_its_field,
    a_server_that_goes_away_is_said_and_found_again,
    a_key_is_asked_for_and_kept_in_this_tab_alone,
    colours_follow_the_system_and_the_switch,
    a_phone_needs_no_sideways_scrolling,
    everything_works_by_keyboard,
    names_and_roles_are_there_for_screen_readers,
    the_engine_shows_numbers_that_move,
    the_page_is_small_cached_and_can_be_turned_off,
]


def pictures(browser, server, folder):
    """Pictures of the page, to be looked at."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in [
        ("desktop", {}),
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"viewport": PHONE, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}),
    ]:
        visit = Visit(browser, server, reduced_motion="reduce", **options)
        page = short(visit, 70, logprobs=True)
        page.screenshot(path=folder / f"{name}-empty.png")
        page.fill("#draft", "Tell me a story about the sea.")
        page.click("#send")
        ended(page)
        page.screenshot(path=folder / f"{name}-chat.png")
        page.get_by_role("button", name="Show token probabilities").click()
        page.locator(".token").nth(5).hover()
        page.screenshot(path=folder / f"{name}-tokens.png")
        body = stream({"reasoning": "The user wants Markdown."}, MARKDOWN)
        page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
        page.fill("#draft", "Show me Markdown.")
        page.click("#send")
        ended(page, 2)
        page.screenshot(path=folder / f"{name}-markdown.png")
        page.unroute("**/v1/chat/completions")
        page.click("#show-settings")
        page.screenshot(path=folder / f"{name}-settings.png")
        page.click("#show-settings")
        page.fill("#draft", "Tell me a long story.")
        page.click("#send")
        page.click("#tab-engine")
        page.wait_for_timeout(6000)
        page.screenshot(path=folder / f"{name}-engine.png")
        visit.close()


def one(browser, server, keyed, check):
    """Runs a check; whether it holds."""
    started = time.monotonic()
    wants = check.__code__.co_varnames[: check.__code__.co_argcount]
    try:
        if wants == ("visit",):
            visit = Visit(browser, server)
            check(visit)
            visit.close()
        else:
            check(browser, keyed if wants[1] == "keyed" else server)
    except Exception:
        traceback.print_exc()
        holds = False
    else:
        holds = True
    words = check.__name__.replace("_", " ")
    print(f"{'ok ' if holds else 'BAD'} {words} ({time.monotonic() - started:.1f} s)", flush=True)
    return holds


def browser_path():
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pelton")
    parser.add_argument("--pictures", help="take pictures into this folder, and check nothing")
    parser.add_argument("--only", default="", help="checks whose names contain this")
    arguments = parser.parse_args()
    path = browser_path()
    if not path:
        missing = "no Chromium, neither $CHROMIUM nor one of the path: the page is not tried in a browser"
        if os.environ.get("E2E_PAGE") == "required":
            sys.exit(missing)
        print(f"--- NOTE: {missing}")
        return
    from playwright.sync_api import sync_playwright

    server = Server(arguments.pelton)
    server.pelton = arguments.pelton
    keyed = Server(arguments.pelton, flags=["--api-key", KEY])
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
            if arguments.pictures:
                return pictures(browser, server, arguments.pictures)
            run = lambda check: one(browser, server, keyed, check)
            chosen = [check for check in CHECKS if arguments.only in check.__name__]
            failed = [check.__name__ for check in chosen if not run(check)]
            browser.close()
    finally:
        server.kill()
        keyed.kill()
    if failed:
        print(f"--- the server's last words ---\n{server.words()[-2000:]}", file=sys.stderr)
        sys.exit(f"{len(failed)} checks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
