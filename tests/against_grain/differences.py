"""Where programs may give something else than in Grain, and why: the only differences that comparisons let pass.

Rows of `PENDING` are no differences that are wanted. Each is to be deleted with the change that makes it go.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A difference: how it is told from others, and why it is one."""

    name: str
    reason: str
    program: str = ""  # what is found in the program
    says: str = ""  # what is found in the difference
    example: str = ""  # a program that shows it
    script: tuple[tuple[str, int], ...] = ()  # what is done with it

    def covers(self, program: str, difference: str) -> bool:
        return bool(re.search(self.program, program) and re.search(self.says, difference, re.DOTALL))


HOLES = r"None|filter|Kept|Children|some_are_none"
READ = ".to_iter_dataset(read(0, 0))"

ALLOWED = (
    Row(
        "said at once",
        "Mistakes are told when a pipeline is built, even if it has no elements.",
        says=r"^built: ours (PipelineError|StructureError).*Grain's \['the end'",
        example=f"ConcatThenSplitIterDataset(M.range(0){READ}, length_struct={{'x': 1}}, meta_features=['m'])",
    ),
    Row(
        "the end of an elastic run",
        "In Grain some shards get a last, partial batch; here all end together.",
        program="^ElasticIterator",
        says="'the end'",
        example="ElasticIterator(M.range(1), 2, ShardOptions(0, 2), read_options=read(0, 0))",
    ),
    Row(
        "batch of holes",
        "Grain makes a batch of holes alone, and fails for a batch with one hole in it; both are errors here.",
        program=r"batch|Batch|Elastic",
        says="found an index without an element",
        example=f"M.source([2, None]).batch(1){READ}",
    ),
    Row(
        "interleave of nothing",
        "Grain fails with an IndexError of its own; a stream of no streams is empty.",
        program=r"InterleaveIterDataset\(",
        says="Grain's IndexError: list index out of range",
        example="InterleaveIterDataset(M.range(0), cycle_length=1)",
    ),
    Row(
        "seeds behind an interleave",
        "Grain wants a seed after an interleave; here those of its parts are taken where there is no other.",
        program=r"InterleaveIterDataset.*\.seed\(",
        says="^built: .*Grain's ValueError: .*requires a seed",
        example=f"InterleaveIterDataset([M.range(2).seed(1){READ}], cycle_length=1).random_map(draw)",
    ),
    Row(
        "batch of numbers and dicts",
        "Grain makes an array of objects where the first element is a number and others are not; here it is an error.",
        program="batch|Batch|Elastic",
        says="ours StructureError: Cannot batch elements of different structure",
        example=f"M.source([1, {{}}]){READ}.batch(2)",
    ),
    Row(
        "random numbers after a flat map",
        "Grain's loader has no generator for the children of a record.",
        program=r"DataLoader.*Children\(\).*Drawn\(\)",
        says="Grain's AttributeError: 'NoneType' object has no attribute 'integers'",
        example=(
            "DataLoader(data_source=[1], sampler=IndexSampler(1, num_epochs=1, seed=1), "
            "operations=[Children(), Drawn()], read_options=read(0, 0))"
        ),
    ),
    Row(
        "an index where Grain has none",
        "Grain knows no index behind some operations that change no index.",
        says=r"^[gs]et_next_index: ours (None|\d+), Grain's (NotImplementedError|AttributeError)",
        example=f"CacheIterDataset(M.range(3){READ})",
        script=(("index", 0),),
    ),
    Row(
        "rebatch of empty batches",
        "Grain fails where a batch has no rows; it adds none here.",
        program="RebatchIterDataset",
        says="Rebatching with starting batch size of 0 is not supported",
        example=f"RebatchIterDataset(M.range(1).map(as_array){READ}, 2)",
    ),
    Row(
        "rebatch of strings",
        "Grain cuts strings and bytes like batches; here they are elements that were not batched.",
        program="RebatchIterDataset",
        says="ours StructureError: rebatch.*needs elements whose leaves have one leading length",
        example=f"RebatchIterDataset(M.source([b'a']){READ}, 1)",
    ),
)
PENDING = (
    Row(
        "children before one that fails, with workers",
        "A worker answers with all children of an element or with the error; those before the error should come first.",
        program=r"^workers\(.*FlatMapIterDataset",
        says=r"^next .*: ours \w+: ",
        example=f"workers(FlatMapIterDataset(M.source([26]){READ}, Children()).map(some_fail), 1)",
    ),
    Row(
        "a stream of a MapDataset",
        "Grain's classes of streams make a stream of a `MapDataset` first.",
        program="random_access",
        example="LimitIterDataset(random_access(M.range(9).filter(is_odd)), 3)",
    ),
    Row(
        "interleave with holes",
        "An interleave should leave out the holes of a `MapDataset` of datasets.",
        program=r"InterleaveIterDataset\(M\.range\(\d+\)\.filter",
        example=f"InterleaveIterDataset(M.range(4).filter(is_odd).map(lambda i: M.range(3){READ}), cycle_length=2)",
    ),
    Row(
        "rows of different lengths",
        "Concat-then-split of features whose rows are of different lengths.",
        program=r"ConcatThenSplit.*'x': (\d+), 'y': (?!\1\b)\d+\}(?!, meta)",
        example=(
            f"ConcatThenSplitIterDataset(M.source(sequences([(3, 3), (4, 4)])){READ}.map(without_m), "
            "length_struct={'x': 2, 'y': 3})"
        ),
    ),
    Row(
        "the next index of a stream",
        "`get_next_index` and `set_next_index` should count what the stream gives, as Grain does.",
        says="^[gs]et_next_index|^next .*after set_next_index",
        example=f"M.range(12){READ}.batch(3)",
        script=(("seek", 2),),
    ),
    Row(
        "Grain's states of streams",
        "Only those of random-access chains, with maps, filters and batches after them, are restored.",
        says="^a state of Grain's: ours StateError",
        example=f"WindowShuffleIterDataset(M.range(9){READ}, window_size=4, seed=1)",
        script=(("next", 1), ("cross", 0)),
    ),
    Row(
        "mix with an empty part",
        "`MapDataset.mix` with an empty part should be an error.",
        program=r"M\.mix",
        says="All datasets must have positive length",
        example="M.mix([M.range(0), M.range(3)])",
    ),
    Row(
        "zip with holes",
        "`ZipMapDataset` should keep rows with a None.",
        program=rf"ZipMapDataset.*({HOLES})|({HOLES}).*ZipMap",
        example=f"ZipMapDataset([M.source([1, None])]){READ}",
    ),
    Row(
        "select from nothing",
        "`select_from_datasets` should do what Grain does where a part or the selection is empty.",
        program="select_from_datasets",
        says="The dataset is empty|ZeroDivisionError",
        example=f"M.select_from_datasets([M.range(2), M.range(5).slice(slice(0, 0))], InTurn(4, 2)){READ}",
    ),
    Row(
        "None in a stream",
        "Streams should hand None through functions, as Grain does.",
        program="allow_nones|some_are_none",
        says="None",
        example="M.source([None, 1]).to_iter_dataset(read(0, 0), allow_nones=True).map_with_index(with_index)",
    ),
)


def row_of(program: str, difference: str) -> Row | None:
    """The row that lets a difference pass."""
    return next((row for row in ALLOWED + PENDING if row.covers(program, difference)), None)
