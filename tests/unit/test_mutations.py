"""The mutations apply to the code as it is, so that a change of mutated code is noticed at once."""

from collections import Counter

import pytest
from tests.mutations import MUTATIONS, ROOT, TABLE, Mutation, table


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_has_its_text_once_and_tests_that_exist(mutation: Mutation) -> None:
    assert (ROOT / "src" / "keephold" / mutation.file).read_text().count(mutation.before) == 1
    where = mutation.tests.partition(" -k ")[0].split()
    assert where and [each for each in where if not (ROOT / each).exists()] == []


def test_names_are_unique_and_the_list_is_that_of_the_script() -> None:
    assert [name for name, count in Counter(each.name for each in MUTATIONS).items() if count > 1] == []
    assert TABLE.read_text() == table()
