"""Random packings, as Python text."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[Any], Any]
ROOM = 6


@st.composite
def _sequences(draw: Draw, least: int = 1, most: int = ROOM, *, equal: bool = False) -> str:
    length = st.integers(least, most)
    pairs = st.builds(lambda n: (n, n), length) if equal else st.tuples(length, length)
    lengths = draw(st.lists(pairs, max_size=20))
    kinds = draw(st.sampled_from(["lf", "if", "hd", "bl", "Bi"]))
    return f"M.source(sequences({lengths}, {kinds!r})).to_iter_dataset(read(None, 0))"


@st.composite
def bin_packings(draw: Draw) -> str:
    """First fit or best fit."""
    name = draw(st.sampled_from(["FirstFitPackIterDataset", "BestFitPackIterDataset"]))
    lengths = {"x": draw(st.integers(ROOM, 12))}
    if draw(st.booleans()):
        lengths["y"] = draw(st.integers(ROOM, 12))
    options: dict[str, Any] = {"length_struct": lengths, "num_packing_bins": draw(st.integers(1, 6))}
    optional: dict[str, st.SearchStrategy] = {
        "seed": st.integers(0, 9),
        "shuffle_bins": st.booleans(),
        "shuffle_bins_group_by_feature": st.sampled_from([*lengths]),
        "max_sequences_per_bin": st.integers(1, 4),
        "pack_alignment_struct": st.fixed_dictionaries({key: st.integers(1, 3) for key in lengths}),
        "padding_struct": st.fixed_dictionaries({key: st.integers(-1, 3) for key in lengths}),
        "meta_features": st.just(["m"]),
    }
    for option in draw(st.lists(st.sampled_from(sorted(optional)), unique=True, max_size=4)):
        options[option] = draw(optional[option])
    if "meta_features" in options and draw(st.booleans()):
        options["meta_features"] = ["y"]
    written = ", ".join(f"{key}={value!r}" for key, value in options.items())
    most = ROOM + 1 if draw(st.integers(0, 9)) == 0 and max(lengths.values()) == ROOM else ROOM
    return f"{name}({draw(_sequences(most=most))}, {written})"


@st.composite
def split_packings(draw: Draw) -> str:
    """Concat then split; the two features are mostly cut alike."""
    length = draw(st.integers(1, 8))
    is_meta = draw(st.booleans())
    other = 40 if is_meta else length + draw(st.sampled_from([0, 0, 0, 1]))
    options = [f"length_struct={{'x': {length}, 'y': {other}}}"]
    options += ["meta_features=['y']"] if is_meta else []
    options += draw(st.sampled_from([[], ["split_full_length_features=False"]]))
    if draw(st.booleans()):
        features = draw(st.sampled_from([["x"], ["x", "y"]]))
        options.append(f"bos_handling=BOS.REPLACE_FIRST_TOKEN_WITH_BOS, bos_features={features}, bos_token_id=99")
    ds = f"{draw(_sequences(most=2 * length, equal=True))}.map(without_m)"
    return f"ConcatThenSplitIterDataset({ds}, {', '.join(options)})"
