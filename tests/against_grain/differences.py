"""Where programs may give something else than in Grain, and why: the only differences that comparisons let pass."""

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


READ = ".to_iter_dataset(read(0, 0))"

ALLOWED = (
    Row(
        "said at once",
        "Mistakes are told when a pipeline is built, even if it has no elements.",
        says=r"^built: ours (PipelineError|StructureError).*Grain's (\['the end'|Boom)",
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
        says="ours StructureError: A batch needs elements of the same structure",
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
        says="ours StructureError: rebatch.*needs elements whose arrays have the same length",
        example=f"RebatchIterDataset(M.source([b'a']){READ}, 1)",
    ),
    Row(
        "rows of different lengths",
        "Grain repeats tokens, leaves room unused or fails where rows of features are of different lengths.",
        program=r"ConcatThenSplit.*'x': (\d+), 'y': (?!\1\b)\d+\}(?!, meta)",
        example=(
            f"ConcatThenSplitIterDataset(M.source(sequences([(3, 3), (4, 4)])){READ}.map(without_m), "
            "length_struct={'x': 2, 'y': 3})"
        ),
    ),
    Row(
        "an index that says too little",
        "Grain gives the count of an operation, or of batches, behind filters and flat maps too, and then goes elsewhere.",
        says=r"^[gs]et_next_index: ours NoNextIndexError: .*has no next index",
        example=f"M.range(9).filter(is_odd){READ}.batch(2)",
        script=(("index", 0),),
    ),
    Row(
        "elements of a selection of nothing",
        "Grain asks an empty selection map for elements by index; what is empty has none here.",
        program="select_from_datasets",
        says=r"ours (PipelineError: .*which is empty|IndexError: The dataset is empty)",
        example=(f"M.select_from_datasets([M.select_from_datasets([M.range(1)], InTurn(0, 1))], InTurn(1, 1)){READ}"),
    ),
    Row(
        "interleave with holes",
        "Grain loses elements of the datasets that are open at the end, and hands on None where there is no dataset.",
        program=r"InterleaveIterDataset\(M\.range\(\d+\)\.filter",
        example=(
            "FlatMapIterDataset(InterleaveIterDataset(M.range(1).filter(is_odd)"
            f".map(lambda i: M.range(0){READ}), cycle_length=1), Children())"
        ),
    ),
)


def row_of(program: str, difference: str) -> Row | None:
    """The row that lets a difference pass."""
    return next((row for row in ALLOWED if row.covers(program, difference)), None)
