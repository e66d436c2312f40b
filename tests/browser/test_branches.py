"""Branches on the page, as a reader makes, looks at, compares, renames and deletes them."""

from __future__ import annotations

from typing import Any

from tests.browser.conftest import Open, Playground

STORY = "Once upon a time, there was a little dragon who"


def begun(opened: Playground, before: str) -> None:
    """Another run than `before` is shown, to its end, and the tree knows it."""
    opened.until("before => document.querySelector('#live').dataset.run !== before", before)
    opened.until("['done', 'stopped', 'error'].includes(document.querySelector('#live').dataset.state)")
    opened.until(
        """() => { const { live } = document.querySelector('#live');
          return live.branches.nodes.some((node) => node.run === live.store.run && node.chances); }"""
    )


def select_step(opened: Playground, step: int) -> None:
    opened.page.evaluate("step => { const { live } = document.querySelector('#live');"
                         " live.selection.pick(live.store.promptLength + step); }", step)  # fmt: skip
    opened.until("step => document.querySelector('#live').dataset.step === String(step)", step)
    opened.settled()
    opened.until(
        "step => { const { nextToken } = document.querySelector('#live').live.drawn;"
        " return nextToken.step === step && !nextToken.given && nextToken.rows.length > 0; }",
        step,
    )


def rows(opened: Playground) -> list[dict[str, Any]]:
    return opened.state("drawn.nextToken.rows")


def test_a_number_key_and_a_click_go_on_with_another_candidate(tab: Open) -> None:
    opened = tab()
    opened.generate(STORY, tokens=12, Temperature=0)
    first, text = opened.live("run"), opened.state("store.tokens")
    select_step(opened, 3)
    wanted = rows(opened)[2]
    opened.page.locator("#live").focus()
    opened.page.keyboard.press("3")
    begun(opened, first)
    tokens = opened.state("store.tokens")
    place = opened.state("store.promptLength") + 3
    assert tokens[:place] == text[:place]
    assert tokens[place]["id"] == wanted["id"]
    assert opened.state("store.begin.branch")["run"] == first
    assert len(opened.state("store.steps")) == 4 + 12
    second = opened.live("run")
    select_step(opened, 6)
    other = rows(opened)[1]
    canvas = opened.page.get_by_role("region", name="Next token", exact=True).locator("canvas.lv-base")
    canvas.click(position={"x": 40, "y": 27})  # the second row of 18 pixels
    begun(opened, second)
    assert opened.state("store.tokens")[opened.state("store.promptLength") + 6]["id"] == other["id"]
    kept = opened.page.get_by_role("region", name="KV cache", exact=True)
    shared = opened.state("store.begin.branch")["shared"]
    assert f"{shared} positions ({shared * 6} KiB) shared with Run 2" in kept.inner_text().replace("\xa0", " ")


def test_own_words_and_an_edited_text_go_on_from_what_is_unchanged(tab: Open) -> None:
    opened = tab()
    opened.generate(STORY, tokens=12, Temperature=0)
    first = opened.live("run")
    select_step(opened, 5)
    opened.press("Branches")
    drawer = opened.page.get_by_role("region", name="Branches", exact=True)
    drawer.get_by_label("Own words").fill("castle")
    drawer.get_by_role("button", name="Go on", exact=True).click()
    begun(opened, first)
    second, text = opened.live("run"), opened.state("store.tokens").copy()
    assert "castle" in "".join(token["text"] for token in text)
    drawer.get_by_text("Edit the whole text").click()
    area = drawer.get_by_label("Edited text")
    whole = "".join(token["text"] for token in text)
    opened.until("whole => document.querySelector('#lv-drawer textarea').value === whole", whole)
    area.fill(whole[: whole.index("castle")] + "forest and a river")
    drawer.get_by_role("button", name="Go on from this text").click()
    begun(opened, second)
    assert "forest and a river" in "".join(token["text"] for token in opened.state("store.tokens"))
    assert opened.state("store.begin.branch")["shared"] >= opened.state("store.promptLength")
    area.fill("")
    drawer.get_by_role("button", name="Go on from this text").click()
    drawer.get_by_text("The prompt is empty").wait_for()
    assert opened.live("state") == "done"


def test_runs_are_chosen_renamed_compared_and_deleted(tab: Open) -> None:
    opened = tab()
    opened.generate(STORY, tokens=12, Temperature=0)
    first = opened.live("run")
    select_step(opened, 3)
    opened.page.locator("#live").focus()
    opened.page.keyboard.press("2")
    begun(opened, first)
    second = opened.live("run")
    opened.page.keyboard.press("b")
    drawer = opened.page.get_by_role("region", name="Branches", exact=True)
    select_step(opened, 7)
    drawer.get_by_role("button", name="Run 1").first.click()
    opened.until("run => document.querySelector('#live').dataset.run === run", first)
    opened.settled()
    assert opened.live("step") == "7"
    assert opened.live("state") == "done"
    drawer.get_by_role("button", name="Rename Run 1").click()
    drawer.get_by_label("Name of the run").fill("The dragon")
    opened.page.keyboard.press("Enter")
    drawer.get_by_role("button", name="Compare The dragon").click()
    drawer.get_by_role("button", name="Compare Run 2").click()
    opened.until("() => document.querySelector('#live').live.drawn.comparison?.next")
    found = opened.state("drawn.comparison")
    assert (found["run"], found["other"]) == (first, second)
    assert found["position"] == opened.state("selection.position")
    assert 0 < found["next"]["total_variation"] <= 1
    assert found["attention"]["query"] >= opened.state("store.promptLength") + 3
    drawer.get_by_text("The dragon → Run 2").wait_for()
    assert drawer.locator(".lv-diff ins").count() > 0
    drawer.get_by_role("button", name="Delete The dragon").click()
    opened.until("run => document.querySelector('#live').dataset.run === run", second)
    assert [node["label"] for node in opened.state("branches.nodes")] == ["Run 2"]
    drawer.get_by_text("from a deleted run at step 3").wait_for()
    opened.settled()


def test_the_list_is_a_sheet_on_a_phone_and_says_what_will_come(tab: Open) -> None:
    opened = tab(width=390, height=844)
    opened.press("Branches")
    drawer = opened.page.get_by_role("region", name="Branches", exact=True)
    assert "will be listed here" in drawer.inner_text()
    box = drawer.bounding_box()
    assert box is not None
    assert (box["x"], box["width"]) == (0, 390)
    opened.page.keyboard.press("Escape")
    drawer.wait_for(state="hidden")
