"""The radix index finds what comparing with every stream would find."""

import gc
import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from superfluid.core.prefix import PrefixIndex


def ids(*tokens):
    return array("I", tokens)


def filled(*streams):
    """An index of these streams, under the keys 0, 1, …"""
    index = PrefixIndex()
    for key, stream in enumerate(streams):
        index.put(key, array("I", stream))
    return index


def shared(a, b):
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


def naive_matches(streams, prompt):
    """{key: shared} by comparing with every stream, a token at a time."""
    found = {key: shared(stream, prompt) for key, stream in streams.items()}
    return {key: length for key, length in found.items() if length}


def naive_tokens(streams):
    """Distinct tokens: one for each different beginning that any stream has."""
    return len({tuple(stream[: end + 1]) for stream in streams.values() for end in range(len(stream))})


class Watched(dict):
    """Counts how many of its values are looked at."""

    seen = 0

    def values(self):
        for value in super().values():
            self.seen += 1
            yield value


def nodes(index):
    found = [index._root]
    for node in found:
        found.extend(node.children.values())
    return found


def check_tree(index):
    """The shape that the module's head promises: without it, matches may be right and memory wrong."""
    ends = {}
    for node in nodes(index):
        if node.parent is None:
            assert not node.label
            assert node.end == 0
        else:
            assert node.label
            assert node.end == node.parent.end + len(node.label)
            assert node.parent.children[node.label[0]] is node
            assert node.keys or len(node.children) >= 2, "a node that is nobody's end and no fork"
        ends.update(dict.fromkeys(node.keys, node))
    assert ends == index._ends
    assert index.tokens == sum(len(node.label) for node in nodes(index))


class TestMatches:
    def test_none_in_an_empty_index(self):
        assert list(PrefixIndex().matches(ids(1, 2))) == []

    def test_none_where_nothing_is_shared(self):
        assert list(filled([1, 2], [3]).matches(ids(4, 1, 2))) == []

    def test_an_empty_prompt_shares_nothing(self):
        assert list(filled([1, 2], []).matches(ids())) == []

    def test_an_empty_stream_shares_nothing(self):
        index = filled([], [1])

        assert list(index.matches(ids(1))) == [(1, 1)]
        assert len(index) == 2

    @pytest.mark.parametrize(
        ("prompt", "length"),
        [([1, 2, 3], 3), ([1, 2, 3, 4], 3), ([1, 2], 2), ([1, 9], 1), ([1, 2, 9, 3], 2)],
        ids=["the same", "a longer one", "a beginning", "the first id", "leaves within the edge"],
    )
    def test_one_stream(self, prompt, length):
        assert list(filled([1, 2, 3]).matches(array("I", prompt))) == [(0, length)]

    def test_the_most_shared_comes_first(self):
        index = filled([1], [1, 2, 3, 4], [1, 2], [1, 2, 3], [7])

        assert list(index.matches(ids(1, 2, 3, 9))) == [(3, 3), (1, 3), (2, 2), (0, 1)]

    def test_a_stream_that_goes_on_differently_shares_what_it_shares(self):
        index = filled([1, 2, 3], [1, 2, 4], [1, 5])

        assert list(index.matches(ids(1, 2, 4))) == [(1, 3), (0, 2), (2, 1)]

    def test_keys_with_the_same_stream_are_both_found(self):
        index = filled([1, 2], [1, 2])
        index.remove(0)
        index.put(5, ids(1, 2))

        assert list(index.matches(ids(1, 2))) == [(1, 2), (5, 2)]

    def test_it_is_lazy_and_does_not_hold_the_prompt(self):
        """A lane's stream grows while somebody looks at the matches of it."""
        prompt = ids(1, 2, 3)
        found = filled([1, 2], [1]).matches(prompt)

        assert next(found) == (0, 2)
        prompt.append(4)
        assert list(found) == [(1, 1)]

    def test_who_looks_at_the_first_pays_for_no_other(self):
        """Each eviction asks of every entry whether another holds as much: with thousands of conversations behind one
        system prompt that took a second."""
        index = filled(*((1, 2, 100 + number) for number in range(50)))
        (fork,) = index._root.children.values()
        fork.children = Watched(fork.children)

        assert next(index.matches(ids(1, 2, 120))) == (20, 3)
        matches = index.matches(ids(1, 2, 9))
        assert next(matches)[1] == 2
        assert fork.children.seen == 1
        assert len(list(matches)) == 49

    def test_of_equals_it_gives_as_many_as_are_asked_for_those_that_end_there_first(self):
        index = filled([1, 2, 8], [1, 2, 9], [1, 2], [1, 5], [1, 6], [7])

        assert list(index.matches(ids(1, 2, 3), equals=2)) == [(2, 2), (0, 2), (3, 1), (4, 1)]


class TestPut:
    def test_the_callers_array_may_grow_and_change_later(self):
        index = PrefixIndex()
        stream = ids(1, 2)
        index.put(0, stream)
        stream.append(3)
        stream[0] = 9

        assert index.stream(0) == ids(1, 2)

    def test_growing_keeps_one_edge(self):
        index = PrefixIndex()
        stream = ids(1)
        for token in range(50):
            stream.append(token)
            index.put(0, stream)

        assert index.stream(0) == stream
        assert len(nodes(index)) == 2

    def test_growing_away_from_a_namesake_leaves_that_one(self):
        index = filled([1, 2], [1, 2])
        index.put(0, ids(1, 2, 3))

        assert index.stream(0) == ids(1, 2, 3)
        assert index.stream(1) == ids(1, 2)

    def test_growing_past_a_longer_relative_leaves_nothing_behind(self):
        index = filled([1, 2], [1, 2, 3])
        index.put(0, ids(1, 2, 3, 4))

        assert list(index.matches(ids(1, 2, 3, 4))) == [(0, 4), (1, 3)]
        assert len(nodes(index)) == 3

    def test_growing_from_nothing(self):
        index = filled([])
        index.put(0, ids(1, 2))

        assert list(index.matches(ids(1))) == [(0, 1)]
        check_tree(index)

    def test_a_cut_stream(self):
        index = filled([1, 2, 3, 4])
        index.put(0, ids(1, 2))

        assert index.stream(0) == ids(1, 2)
        assert index.tokens == 2

    def test_another_stream(self):
        index = filled([1, 2, 3])
        index.put(0, ids(4, 5))

        assert list(index.matches(ids(1, 2, 3))) == []
        assert index.stream(0) == ids(4, 5)

    def test_the_same_again_changes_nothing(self):
        index = filled([1, 2, 3])
        index.put(0, ids(1, 2, 3))

        assert len(index) == 1
        assert index.tokens == 3

    def test_ids_are_whole_numbers_and_not_bytes(self):
        index = filled([0x0101], [0x01010101])

        assert list(index.matches(ids(0x0101))) == [(0, 1)]
        assert list(index.matches(ids(0x01010101))) == [(1, 1)]


class TestRemove:
    def test_an_unknown_key(self):
        index = filled([1])

        with pytest.raises(KeyError):
            index.remove(7)
        with pytest.raises(KeyError):
            index.stream(7)
        assert 7 not in index
        assert 0 in index

    def test_what_others_share_stays(self):
        index = filled([1, 2, 3], [1, 2, 4])
        index.remove(0)

        assert list(index.matches(ids(1, 2, 3))) == [(1, 2)]
        assert index.tokens == 3

    def test_a_fork_that_ends_leaves_one_edge(self):
        index = filled([1, 2, 3], [1, 2, 4], [1, 2])
        index.remove(2)
        index.remove(0)

        assert len(nodes(index)) == 2
        assert index.stream(1) == ids(1, 2, 4)

    @pytest.mark.slow
    def test_memory_follows_the_distinct_tokens_and_comes_back(self):
        """100 sessions with one prompt of 20,000 ids: flat copies would take 8 MB."""
        common = array("I", range(20_000))
        streams = [common + ids(key, 1, 2, 3) for key in range(100)]
        gc.collect()
        tracemalloc.start()
        try:
            index = filled(*streams)
            gc.collect()
            full, _ = tracemalloc.get_traced_memory()
            for key in range(100):
                index.remove(key)
            gc.collect()
            empty, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert index.tokens == 0
        assert full < 4 * 20_000 + 100_000
        assert empty < 30_000

    @pytest.mark.slow
    def test_a_chain_of_a_thousand_streams_needs_no_deep_stack(self):
        whole = array("I", range(2000))
        index = filled(*(whole[: 2 * length] for length in range(1, 1001)))

        assert [length for _, length in index.matches(whole)] == [2 * n for n in range(1000, 0, -1)]
        assert index.stream(999) == whole
        for key in range(1000):
            index.remove(key)
        assert len(nodes(index)) == 1


TOKENS = st.lists(st.integers(0, 2), max_size=12)
KEYS = st.integers(0, 5)


@pytest.mark.slow
@given(st.lists(TOKENS, max_size=8), TOKENS)
def test_matches_are_those_of_the_loop_over_all_streams(streams, prompt):
    found = list(filled(*streams).matches(array("I", prompt)))
    lengths = [length for _, length in found]

    assert dict(found) == naive_matches(dict(enumerate(streams)), prompt)
    assert len(found) == len(dict(found))
    assert lengths == sorted(lengths, reverse=True)


class Against(RuleBasedStateMachine):
    """An index beside a dict of token lists. Streams come from each other, as turns and forks do."""

    @initialize()
    def start(self):
        self.index = PrefixIndex()
        self.streams = {}

    def put(self, key, stream):
        self.index.put(key, array("I", stream))
        self.streams[key] = list(stream)

    @rule(key=KEYS, stream=TOKENS)
    def put_any(self, key, stream):
        self.put(key, stream)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), key=KEYS, more=TOKENS)
    def put_related(self, data, key, more):
        """A turn when it goes on from the key's own end, else a fork."""
        other = self.streams[data.draw(st.sampled_from(sorted(self.streams)))]
        cut = data.draw(st.integers(0, len(other)))
        self.put(key, other[:cut] + more)

    @precondition(lambda self: self.streams)
    @rule(data=st.data(), more=TOKENS)
    def grow(self, data, more):
        key = data.draw(st.sampled_from(sorted(self.streams)))
        self.put(key, self.streams[key] + more)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def remove(self, data):
        key = data.draw(st.sampled_from(sorted(self.streams)))
        self.index.remove(key)
        del self.streams[key]

    @rule(prompt=TOKENS)
    def look(self, prompt):
        found = list(self.index.matches(array("I", prompt)))
        lengths = [length for _, length in found]

        assert dict(found) == naive_matches(self.streams, prompt)
        assert len(found) == len(dict(found))
        assert lengths == sorted(lengths, reverse=True)

    @invariant()
    def it_holds_what_was_put(self):
        assert len(self.index) == len(self.streams)
        assert {key: self.index.stream(key).tolist() for key in self.streams} == self.streams
        assert self.index.tokens == naive_tokens(self.streams)
        check_tree(self.index)


TestAgainstLists = pytest.mark.slow(Against.TestCase)
