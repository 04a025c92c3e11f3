"""The report page in a real Chromium: no error, no request, the worst pair found by pointer, by keys and by table."""

import pytest

from preflight.report.page.write import write_page
from tests.report.browser import Chromium
from tests.report.pages import HOSTILE, fabric

pytestmark = pytest.mark.debian("chromium")
READY = "document.documentElement?.dataset.ready"
BLUE = (35, 71, 214)  # of what failed, in light colours


@pytest.fixture(scope="module")
def chromium():
    with Chromium() as browser:
        browser.shape(1280, 900)
        yield browser


def show(chromium, tmp_path, report, previous=None):
    """Writes the page and opens it; it must say nothing and ask for nothing."""
    page = tmp_path / "page.html"
    write_page(report, page, previous)
    chromium.open(page, READY)
    quiet(chromium)
    assert chromium.requests == [page.resolve().as_uri()]


def quiet(chromium):
    assert chromium.console == []


def cell(chromium, matrix, row, column):
    """The middle of a cell in the window."""
    return chromium.evaluate(
        f"""(() => {{
          const box = document.querySelector("#{matrix} .canvas"); box.scrollIntoView({{ block: "center" }});
          const canvas = box.querySelector("canvas").getBoundingClientRect(), size = {chromium.evaluate(f"Number(document.querySelector('#{matrix}').dataset.size)")};
          const [left, top, side] = document.querySelector("#{matrix}").dataset.frame.split(" ").map(Number);
          return [canvas.x + left + ({column} + 0.5) * side / size, canvas.y + top + ({row} + 0.5) * side / size];
        }})()"""
    )


def colour(chromium, matrix, x, y):
    """Red, green, blue of the canvas at a place of the window."""
    return chromium.evaluate(
        f"""(() => {{
          const canvas = document.querySelector("#{matrix} canvas"), box = canvas.getBoundingClientRect();
          const copy = new OffscreenCanvas(1, 1).getContext("2d", {{ willReadFrequently: true }});
          copy.drawImage(canvas, -Math.floor({x} - box.x), -Math.floor({y} - box.y));
          return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }})()"""
    )


def tip(chromium):
    return chromium.evaluate("document.querySelector('#tip').hidden ? '' : document.querySelector('#tip').innerText")


@pytest.fixture(scope="module")
def eight(tmp_path_factory, chromium):
    """8 ranks on two nodes, of which one pair failed; opened."""
    report = fabric(["n1", "n2"], slow="n2", failed=(0, 4))
    show(chromium, tmp_path_factory.mktemp("page"), report)
    return chromium


def test_the_worst_pair_of_eight_ranks_is_found_by_pointing_at_it(eight):
    x, y = cell(eight, "gpu-matrix", 0, 4)
    assert tuple(colour(eight, "gpu-matrix", x - 15, y - 15)) == BLUE
    eight.point(x, y)
    eight.wait("!document.querySelector('#tip').hidden")
    assert tip(eight).split("\n") == [
        "rank 0, n1 GPU 0 \u2194 rank 4, n2 GPU 0",
        "failed: every attempt",
        "route: other leaf, like slots, reference 46.0 GB/s, by formula 46.0 GB/s",
    ]
    eight.point(*cell(eight, "gpu-matrix", 1, 4))
    assert "not measured both ways at once: unknown" in tip(eight)
    eight.point(*cell(eight, "node-matrix", 0, 1))
    assert "4 of 16 pairs of GPUs measured" in tip(eight)
    quiet(eight)


def test_the_table_leads_to_the_cell_and_opens_the_gpus_of_both_nodes(eight):
    eight.evaluate("document.querySelector('#pairs [data-show=node-matrix]').click()")
    assert "n1 \u2194 n2" in eight.evaluate("document.querySelector('#node-matrix-at').innerText")
    assert "\u00d7 failed" in eight.evaluate("document.querySelector('#node-pair').innerText")
    assert eight.evaluate("document.activeElement.closest('#node-matrix') !== null")
    eight.evaluate("document.querySelector('#node-pair .close').click()")
    assert eight.evaluate("document.querySelector('#node-pair').hidden")
    eight.evaluate("document.querySelector('[data-node=\"1\"]').click()")
    assert "slow with every partner" in eight.evaluate("document.querySelector('#node-detail').innerText")
    quiet(eight)


def test_keys_walk_through_a_matrix_and_every_stop_is_visible(eight):
    eight.evaluate("document.querySelector('#gpu-matrix .canvas').focus()")
    said = "document.querySelector('#gpu-matrix-at').innerText"
    assert "rank 0, n1 GPU 0 \u2194 rank 4, n2 GPU 0" in eight.evaluate(said)  # it begins at the worst pair
    eight.press("ArrowDown")
    eight.press("ArrowRight")
    assert "rank 1, n1 GPU 1 \u2194 rank 5, n2 GPU 1" in eight.evaluate(said)
    assert "23.0 GB/s, 50 % of the reference" in eight.evaluate(said)
    eight.press("+")
    eight.press("0")
    stops = []
    eight.evaluate("document.querySelector('.skip').focus()")
    for _ in range(80):
        stop = eight.evaluate(
            "(e => e === document.body ? null : [e.tagName, e.getAttribute('aria-label') || e.innerText || e.closest('label')?.innerText || '', getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        if stop is None:
            break
        stops.append(stop)
        eight.press("Tab")
    assert stops[0][1] == "Skip to the findings"
    assert all(name.strip() for _, name, _ in stops)
    assert all(outline != "none" for _, _, outline in stops)
    quiet(eight)


def test_the_colours_follow_the_readers_system_and_paper_is_light(eight):
    x, y = cell(eight, "gpu-matrix", 0, 1)
    assert sum(colour(eight, "gpu-matrix", x - 15, y - 15)) > 500
    try:
        eight.shape(1280, 900, dark=True)
        eight.wait("getComputedStyle(document.body).backgroundColor === 'rgb(18, 22, 27)'")
        x, y = cell(eight, "gpu-matrix", 0, 1)
        assert sum(colour(eight, "gpu-matrix", x - 15, y - 15)) < 200
        eight.shape(1280, 900, dark=True, printed=True)
        assert eight.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        eight.shape(400, 900)
        eight.wait("document.documentElement.scrollWidth <= 400")
    finally:
        eight.shape(1280, 900)
    quiet(eight)


def test_a_chosen_group_stands_out_in_the_placement(eight):
    eight.evaluate("document.querySelector('#place-axis').value = 1; document.querySelector('#place-axis').onchange()")
    assert "dp: 4 groups; 4 leave their NVLink domain" in eight.evaluate(
        "document.querySelector('#place-says').innerText"
    )
    eight.evaluate(
        "document.querySelector('#place-group').value = 2; document.querySelector('#place-group').onchange()"
    )
    assert eight.evaluate("[...document.querySelectorAll('.rank.on')].map(e => e.dataset.rank).join()") == "2,6"
    assert "2 ranks on 2 nodes (n1, n2), 2 leaves" in eight.evaluate("document.querySelector('#place-says').innerText")


@pytest.mark.soak
def test_hostile_names_run_nothing_and_break_nothing(tmp_path, chromium):
    show(chromium, tmp_path, fabric([*HOSTILE, "good"], slots=2, slow=HOSTILE[0]))
    assert chromium.evaluate("window.hit === undefined && document.querySelectorAll('img, script').length") == 2
    chromium.evaluate("document.querySelector('[data-node=\"0\"]').click()")
    chromium.point(*cell(chromium, "node-matrix", 0, 1))
    assert chromium.evaluate("window.hit === undefined")
    quiet(chromium)


@pytest.mark.soak
@pytest.mark.parametrize("number", [64, 512])
def test_the_worst_pair_of_many_nodes_is_found_by_pointer_and_by_table(tmp_path, chromium, number):
    nodes = [f"gpu{n:03}" for n in range(1, number + 1)]
    worst = (number // 2 - 3, number - 5)
    report = fabric(
        nodes, slots=1 if number == 512 else 8, failed=tuple(n * (1 if number == 512 else 8) for n in worst)
    )
    show(chromium, tmp_path, report, report)
    names = f"{nodes[worst[0]]} \u2194 {nodes[worst[1]]}"
    x, y = cell(chromium, "node-matrix", *worst)
    chromium.point(x, y)
    assert tip(chromium).split("\n")[0] == names
    assert tuple(colour(chromium, "node-matrix", x, y)) == BLUE
    row = chromium.evaluate("document.querySelector('#pairs .pairs tbody tr').innerText")
    assert nodes[worst[0]] in row
    assert "failed" in row
    chromium.evaluate("document.querySelector('#pairs [data-show=node-matrix]').click()")
    assert names in chromium.evaluate("document.querySelector('#node-matrix-at').innerText")
    assert "\u00d7 failed" in chromium.evaluate("document.querySelector('#node-pair').innerText")
    for dark in (True, False):
        chromium.shape(1280, 900, dark=dark)
        assert chromium.evaluate("document.documentElement.scrollWidth") <= 1280
    quiet(chromium)
