"""Lists: what a query shows, in which order, and links to the rest."""

from starlette.datastructures import QueryParams

from headrace.console.listing import ROWS_MAX, ListPage, SortKey, listing

ROWS = [(f"topic-{number}", float(number) if number % 2 else None) for number in range(120)]
COLUMNS: dict[str, SortKey[tuple[str, float | None]]] = {
    "name": SortKey(lambda row: row[0]),
    "rate": SortKey(lambda row: row[1], descends=True),
}


def shown(query: str) -> ListPage[tuple[str, float | None]]:
    return listing(QueryParams(query), "/topics", ROWS, COLUMNS, text=lambda row: row[0])


def test_a_list_is_cut_into_pages_that_no_number_leaves() -> None:
    first = shown("")
    assert [row[0] for row in first.rows[:3]] == ["topic-0", "topic-1", "topic-10"]
    assert (len(first.rows), first.page, first.pages) == (ROWS_MAX, 1, 3)
    for query, page in (
        ("page=3", 3),
        ("page=99", 3),
        ("page=0", 1),
        ("page=-1", 1),
        ("page=²", 1),
    ):
        assert shown(query).page == page
    assert (shown("page=3").first, shown("page=3").last) == (101, 120)


def test_unknown_values_come_last_in_either_direction() -> None:
    assert [row[1] for row in shown("sort=rate").rows[:2]] == [1, 3]
    assert [row[1] for row in shown("sort=-rate").rows[:2]] == [119, 117]
    assert shown("sort=rate&page=3").rows[-1][1] is None
    assert shown("sort=-rate&page=3").rows[-1][1] is None


def test_all_words_of_a_filter_must_be_in_a_row() -> None:
    found = shown("q=TOPIC+11")
    assert [row[0] for row in found.rows] == ["topic-11", *(f"topic-11{n}" for n in range(10))]
    assert (found.matching, found.total) == (11, 120)
    assert shown("q=nothing").rows == []
    assert shown("q=nothing").first == 0


def test_links_keep_the_filter_and_turn_the_order() -> None:
    found = shown("q=1&sort=name&page=2")
    assert found.sorted_by("name") == {"q": "1", "sort": "-name", "page": None}
    assert found.sorted_by("rate") == {"q": "1", "sort": "-rate", "page": None}
    assert found.query(page=1) == {"q": "1", "sort": "name", "page": 1}
    assert shown("sort=../etc").sort == "name"
