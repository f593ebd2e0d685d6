"""Texts to tokens: what the libraries give for one text at a time, whatever the blocks, threads and workers."""

import base64
import importlib.util
import inspect
import io
import json
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import DataError, MissingDependency, PipelineError, install_command
from headrace.packing import FirstFitPackIterDataset
from headrace.sources import JsonLinesIterDataset
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from headrace.text import Tokenize
from headrace.trees import ShapeDtypeStruct
from tests.support.proc import LIMIT_S

sentencepiece = pytest.importorskip("sentencepiece")
tiktoken = pytest.importorskip("tiktoken")
tokenizers = pytest.importorskip("tokenizers")

LIBRARIES = ("tokenizers", "tiktoken", "sentencepiece")
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
EOT = "<|endoftext|>"


def documentation() -> list[str]:
    """The docstrings of some modules of Python's own."""
    modules = map(importlib.import_module, ("argparse", "asyncio", "decimal", "logging", "os", "pathlib", "statistics"))
    found = {inspect.getdoc(value) for module in modules for value in vars(module).values() if callable(value)}
    return sorted(text for text in found if text)


TEXTS = documentation()
ODD_TEXTS = [
    "",
    " ",
    "\n\n\t",
    "\x00",
    "naïve café",
    "日本語のテキスト",
    "👩‍👩‍👧‍👦 🇯🇵",
    "e\u0301" * 3,
    EOT,
    "a" * 5000,
    "x " * 5000,
]


@dataclass
class Made:
    """A tokenizer as an object and in a file, and the library's own answer for one text."""

    tokenizer: Any
    path: str
    one: Any
    options: dict[str, Any]

    def tokenize(self, **options: Any) -> Tokenize:
        return Tokenize(self.path, **(self.options | options))


def byte_level_bpe():
    """A BPE of `tokenizers` whose tokens are bytes, in the order of their ranks."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def ranks_of(tokenizer) -> dict[bytes, int]:
    """The ranks of a byte-level BPE, whose bytes are shown as printable letters."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return {bytes(byte_of[letter] for letter in token): rank for token, rank in tokenizer.get_vocab().items()}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="session")
def bpe(folder) -> Made:
    tokenizer = byte_level_bpe()
    tokenizer.save(str(folder / "tokenizer.json"))
    return Made(tokenizer, str(folder / "tokenizer.json"), lambda text: tokenizer.encode(text).ids, {})


@pytest.fixture(scope="session")
def ranks(folder, bpe) -> Made:
    found, special = ranks_of(bpe.tokenizer), {EOT: 600}
    lines = [
        base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(found.items(), key=lambda item: item[1])
    ]
    (folder / "small.tiktoken").write_bytes(b"".join(lines))
    encoding = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=found, special_tokens=special)
    options = {"pattern": PATTERN, "special_tokens": special}
    return Made(encoding, str(folder / "small.tiktoken"), encoding.encode_ordinary, options)


@pytest.fixture(scope="session")
def pieces(folder) -> Made:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=400, minloglevel=2, max_sentence_length=20000
    )
    (folder / "small.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return Made(processor, str(folder / "small.model"), lambda text: processor.encode(text, out_type=int), {})


@pytest.fixture(scope="session")
def made(bpe, ranks, pieces) -> dict[str, Made]:
    return dict(zip(LIBRARIES, (bpe, ranks, pieces), strict=True))


def run_script(source: str, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


# ---- what comes out


@pytest.mark.parametrize("library", LIBRARIES)
def test_tokens_are_those_of_the_library_for_one_text(made, library):
    tokenizer = made[library]
    texts = ODD_TEXTS + TEXTS
    expected = [np.array(tokenizer.one(text), np.int32) for text in texts]
    for given_as in (tokenizer.tokenize(), Tokenize(tokenizer.tokenizer)):
        together = given_as.map_rows([{"text": text} for text in texts])
        for text, row, tokens in zip(texts, together, expected, strict=True):
            assert_equal(row, {"tokens": tokens})
            assert_equal(given_as.map({"text": text}), {"tokens": tokens})


@given(texts=st.lists(st.text(), max_size=20))
def test_any_texts_together_are_each_alone(made, texts):
    for tokenizer in made.values():
        transform = tokenizer.tokenize(feature=None, output=None)
        for text, row in zip(texts, transform.map_rows(texts), strict=True):
            assert row.tolist() == tokenizer.one(text)
            assert row.dtype == np.int32


def test_libraries_agree_on_the_same_merges(bpe, ranks):
    a, b = (each.tokenize(feature=None, output=None) for each in (bpe, ranks))
    for x, y in zip(a.map_rows(ODD_TEXTS + TEXTS), b.map_rows(ODD_TEXTS + TEXTS), strict=True):
        assert_equal(x, y)


@pytest.mark.parametrize("library", ["tiktoken", "sentencepiece"])
def test_threads_change_nothing(made, library):
    one, several = (made[library].tokenize(feature=None, output=None, threads=n).map_rows(TEXTS) for n in (1, 3))
    for a, b in zip(one, several, strict=True):
        assert_equal(a, b)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_laws_of_datasets_hold(made, library):
    ds = MapDataset.source([{"text": text, "number": i} for i, text in enumerate(TEXTS)])
    tokens = ds.map(made[library].tokenize())
    assert_block_law(tokens)
    stream = tokens.to_iter_dataset().filter(lambda element: len(element["tokens"]) < 200).window_shuffle(7, seed=1)
    assert_resumable(stream, max_outputs=20)


@pytest.mark.parametrize("library", LIBRARIES)
def test_workers_give_the_same_stream(made, library):
    ds = MapDataset.source(ODD_TEXTS + TEXTS).to_iter_dataset()
    ds = ds.filter(lambda text: len(text) != 1).map(made[library].tokenize(feature=None, eos=1, max_length=64))
    alone, together = iter(ds), iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
    for a in alone:
        assert_equal(next(together), a)
        assert alone.get_state() == together.get_state()
    assert next(together, None) is None


def test_json_lines_to_packed_rows(made, tmp_path):
    (tmp_path / "docs.jsonl").write_text(
        "".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(TEXTS))
    )
    tokens = JsonLinesIterDataset(str(tmp_path / "docs.jsonl")).map(made["tokenizers"].tokenize(max_length=128))
    rows = FirstFitPackIterDataset(
        tokens.map(lambda e: {"tokens": e["tokens"]}), length_struct={"tokens": 128}, num_packing_bins=4
    )
    count = sum(int((row["tokens_segment_ids"] > 0).sum()) for row in rows)
    assert count == sum(min(128, len(made["tokenizers"].one(text))) for text in TEXTS)
    assert_resumable(rows, max_outputs=10)


# ---- elements


def test_text_becomes_tokens_and_other_features_stay(bpe):
    text, tokens = "some text", np.array(bpe.one("some text"), np.int32)
    element = {"text": text, "id": 7}
    assert_equal(bpe.tokenize().map(element), {"id": 7, "tokens": tokens})
    assert element == {"text": text, "id": 7}
    assert_equal(bpe.tokenize(keep_text=True).map(element), {"text": text, "id": 7, "tokens": tokens})
    assert_equal(bpe.tokenize(output=None).map(element), tokens)
    assert_equal(bpe.tokenize(output="text").map(element), {"id": 7, "text": tokens})
    assert_equal(bpe.tokenize(feature="body", output="ids").map({"body": text}), {"ids": tokens})
    assert_equal(bpe.tokenize(feature=None).map(text), {"tokens": tokens})
    assert_equal(bpe.tokenize(feature=None, output=None, dtype=np.uint16).map(text), tokens.astype(np.uint16))


@pytest.mark.parametrize("library", LIBRARIES)
def test_tokens_are_the_users_to_change(made, library):
    rows = made[library].tokenize(feature=None, output=None).map_rows(["some text", "more text"])
    before = rows[1].copy()
    rows[0] += 1
    assert_equal(rows[1], before)
    assert all(row.base is None for row in rows)


@pytest.mark.parametrize("library", LIBRARIES)
def test_bytes_and_strings_of_numpy_are_texts(made, library):
    transform = made[library].tokenize(feature=None, output=None)
    for text in ("naïve".encode(), np.bytes_("naïve".encode()), np.str_("naïve")):
        assert_equal(transform.map(text), transform.map("naïve"))


def test_the_spec_is_known(bpe):
    spec = bpe.tokenize(dtype=np.uint16).output_spec({"text": "anything", "id": ShapeDtypeStruct((), np.int64)})
    assert spec == {"id": ShapeDtypeStruct((), np.int64), "tokens": ShapeDtypeStruct((None,), np.uint16)}
    assert bpe.tokenize(output=None).output_spec({"text": 0}) == ShapeDtypeStruct((None,), np.int32)


# ---- the first and the last token, and cutting


def test_tokens_before_and_after_a_text(made):
    for library, tokenizer in made.items():
        ids = tokenizer.one("some text")
        get = lambda t=tokenizer, **options: t.tokenize(feature=None, output=None, **options).map("some text").tolist()  # noqa: E731
        assert get(bos=3) == [3, *ids]
        assert get(bos=3, eos=5) == [3, *ids, 5], library
        assert get(bos=3, eos=5, max_length=4) == [3, *ids[:2], 5]
        assert get(max_length=2) == ids[:2]
        assert get(max_length=1000) == ids
        assert tokenizer.tokenize(feature=None, output=None, eos=5).map("").tolist() == [5]
    names = {"tokenizers": {"eos": "t"}, "tiktoken": {"eos": True}, "sentencepiece": {"bos": True, "eos": "</s>"}}
    ends = {"tokenizers": made["tokenizers"].tokenizer.token_to_id("t"), "tiktoken": 600, "sentencepiece": 2}
    for library, options in names.items():
        row = made[library].tokenize(feature=None, output=None, **options).map("some text").tolist()
        assert row[-1] == ends[library]
        assert row[0] == 1 or library != "sentencepiece"


def test_one_and_true_are_different_tokens(pieces):
    """As keys of a dict they are the same."""
    a, b = pieces.tokenize(feature=None, output=None, eos=1), pieces.tokenize(feature=None, output=None, eos=True)
    assert a.map("x")[-1] == 1
    assert b.map("x")[-1] == pieces.tokenizer.eos_id() == 2


@pytest.fixture
def with_template(bpe):
    tokenizer = tokenizers.Tokenizer.from_file(bpe.path)
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    first, last = ((name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[first, last]
    )
    return tokenizer


def test_special_tokens_that_a_tokenizer_adds_by_itself(bpe, with_template):
    text, ids = "some longer text", bpe.one("some longer text")
    first, last = (with_template.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    options = {"feature": None, "output": None}
    assert (
        Tokenize(with_template, **options).map(text).tolist() == [first, *ids, last] == with_template.encode(text).ids
    )
    assert Tokenize(with_template, max_length=4, **options).map(text).tolist() == [first, *ids[:2], last]
    assert Tokenize(with_template, add_special_tokens=False, eos=9, **options).map(text).tolist() == [*ids, 9]
    with pytest.raises(PipelineError, match=r"already adds 2 special tokens to every text.*add_special_tokens=False"):
        Tokenize(with_template, eos=9, **options).map(text)
    with pytest.raises(PipelineError, match="max_length=2 leaves no room for text besides the 2 special tokens"):
        Tokenize(with_template, max_length=2, **options).map(text)


def test_padding_and_truncation_of_its_own_are_left_out(bpe):
    tokenizer = tokenizers.Tokenizer.from_file(bpe.path)
    tokenizer.enable_padding()
    tokenizer.enable_truncation(3)
    rows = Tokenize(tokenizer, feature=None, output=None).map_rows(TEXTS)
    assert [row.tolist() for row in rows] == [bpe.one(text) for text in TEXTS]
    assert tokenizer.padding is not None  # the user's is as it was
    assert len(tokenizer.encode(TEXTS[-1]).ids) == 3


def test_special_tokens_in_texts_of_tiktoken(ranks):
    text = f"a{EOT}b"
    get = lambda **options: ranks.tokenize(feature=None, output=None, **options).map(text).tolist()  # noqa: E731
    assert get() == ranks.tokenizer.encode_ordinary(text)
    assert (
        get(allowed_special="all") == get(allowed_special={EOT}) == ranks.tokenizer.encode(text, allowed_special="all")
    )
    assert 600 in get(allowed_special="all")


# ---- other processes


def test_a_path_travels_as_a_path_and_an_object_as_its_file(made):
    for library, tokenizer in made.items():
        by_path, by_object = tokenizer.tokenize(), Tokenize(tokenizer.tokenizer)
        by_path.map({"text": "open it"})
        assert len(pickle.dumps(by_path)) < 2000, library
        assert len(pickle.dumps(by_object)) > 2000, library
        for each in (by_path, by_object):
            copy = pickle.loads(pickle.dumps(each))
            assert_equal(copy.map({"text": "naïve"}), each.map({"text": "naïve"}))
            assert repr(copy) == repr(each)


def test_a_tokenizer_is_opened_once_for_all_who_use_it(bpe):
    a, b, other = bpe.tokenize(), bpe.tokenize(feature="body"), bpe.tokenize(eos=1)
    for each in (a, b, other):
        each.map({"text": "x", "body": "y"})
    assert a._encoder is b._encoder
    assert a._encoder is not other._encoder


def test_the_name_of_an_encoding(ranks, tmp_path, monkeypatch):
    """tiktoken finds encodings in plugins: here is one."""
    (tmp_path / "tiktoken_ext").mkdir()
    (tmp_path / "tiktoken_ext" / "small_plugin.py").write_text(f"""
import base64
def small():
    lines = open({ranks.path!r}, "rb").read().splitlines()
    ranks = {{base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}}
    return dict(name="small", pat_str={PATTERN!r}, mergeable_ranks=ranks, special_tokens={{}})
ENCODING_CONSTRUCTORS = {{"small": small}}
""")
    script = """
        import sys
        sys.path.append(sys.argv[1])
        import tiktoken
        from headrace import MapDataset, MultiprocessingOptions
        from headrace.text import Tokenize
        transforms = [Tokenize("small", feature=None, output=None), Tokenize(tiktoken.get_encoding("small"), feature=None)]
        print(transforms[0])
        ds = MapDataset.source(["some text"] * 5).to_iter_dataset()
        print(next(iter(ds.map(transforms[0]).mp_prefetch(MultiprocessingOptions(num_workers=1)))).tolist())
        print(next(iter(ds.map(transforms[1])))["tokens"].tolist())
        try:
            Tokenize("smaller")
        except FileNotFoundError as e:
            print(e)
    """
    done = run_script(script, str(tmp_path))
    shown, named, given_as_object, error = done.stdout.splitlines()
    assert shown == "Tokenize(tiktoken small, feature=None, output=None)", done.stderr
    assert json.loads(named) == json.loads(given_as_object) == ranks.one("some text")
    assert "There is no tokenizer file 'smaller', and tiktoken knows no encoding of that name: it knows" in error
    assert "small." in error


def test_threads_of_tokenizers_are_off_in_workers_unless_asked_for(bpe):
    """And nothing is said of forks, though threads were at work before the workers were started."""
    script = """
        import os, sys
        from headrace import MapDataset, MultiprocessingOptions
        from headrace.text import Tokenize
        ds = MapDataset.source(["some text", "more text"] * 500).to_iter_dataset()
        show = lambda tokens: (os.environ.get("TOKENIZERS_PARALLELISM"), os.environ.get("RAYON_NUM_THREADS"), tokens.tolist())
        plain = ds.map(Tokenize(sys.argv[1], feature=None, output=None)).map(show)
        here = [tokens for _, _, tokens in plain]
        print(next(iter(plain))[:2])
        workers = MultiprocessingOptions(num_workers=2)
        there = list(plain.mp_prefetch(workers))
        print(there[0][:2], [tokens for _, _, tokens in there] == here)
        two = ds.map(Tokenize(sys.argv[1], feature=None, output=None, threads=2)).map(show)
        there = list(two.mp_prefetch(workers))
        print(there[0][:2], [tokens for _, _, tokens in there] == here)
        one = ds.map(Tokenize(sys.argv[1], feature=None, output=None, threads=1)).map(show)
        print(next(iter(one))[:2], [tokens for _, _, tokens in one] == here)
    """
    done = run_script(script, bpe.path)
    assert done.stderr == ""
    here, workers, two, one = done.stdout.splitlines()
    assert here == "(None, None)"
    assert workers == "('false', None) True"
    assert two == "('true', '2') True"
    assert one == "('false', '1') True"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_has_one_thread_in_a_worker_unless_told_otherwise(made, library):
    ds = MapDataset.source(["some text"] * 3).to_iter_dataset()
    for threads, in_worker in ((None, 1), (2, 2)):
        transform = made[library].tokenize(feature=None, threads=threads)

        def num_threads(_, transform=transform):
            return transform._encoder.num_threads

        stream = ds.map(transform).map(num_threads).mp_prefetch(MultiprocessingOptions(num_workers=1))
        assert list(stream) == [in_worker] * 3


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_of_a_tokenizer_of_transformers_the_one_inside_is_taken(bpe):
    """With nothing that a call of the outer one has left there."""
    done = run_script(
        """
        import sys
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast
        from headrace.text import Tokenize
        outer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(sys.argv[1]))
        outer("some text", truncation=True, max_length=1)
        print(Tokenize(outer, feature=None, output=None).map("some text").tolist())
        """,
        bpe.path,
    )
    assert json.loads(done.stdout) == bpe.one("some text"), done.stderr


def test_a_file_far_away(bpe):
    fsspec = pytest.importorskip("fsspec")
    with open(bpe.path, "rb") as file:
        fsspec.filesystem("memory").pipe("/models/tokenizer.json", file.read())
    there, here = Tokenize("memory://models/tokenizer.json"), bpe.tokenize()
    assert repr(there) == repr(here)
    assert_equal(there.map({"text": "some text"}), here.map({"text": "some text"}))


def test_it_is_known_by_library_file_and_contents(made, folder):
    shown = {library: repr(tokenizer.tokenize()) for library, tokenizer in made.items()}
    names = {"tokenizers": r"tokenizer.json", "tiktoken": "small.tiktoken", "sentencepiece": "small.model"}
    for library, text in shown.items():
        kind, name, digest = text.removeprefix("Tokenize(").removesuffix(")").split()
        assert (kind, name) == (library, names[library])
        assert len(digest) == 12
    tokenizer = made["tiktoken"].tokenize(feature="body", eos=5, dtype="uint16", allowed_special={"b", "a"})
    assert repr(tokenizer).endswith(", feature='body', dtype=uint16, eos=5, allowed_special=['a', 'b'])")
    ds = MapDataset.source([{"text": "x"}]).map(made["tokenizers"].tokenize())
    assert shown["tokenizers"] in repr(ds)


# ---- what is wrong


def test_a_missing_feature_is_named_with_those_that_are_there(bpe):
    ds = MapDataset.source([{"text": "a"}, {"body": "b", "id": 1}]).map(bpe.tokenize()).to_iter_dataset()
    iterator = iter(ds)
    next(iterator)
    with pytest.raises(
        PipelineError, match=r"no feature 'text' to tokenize; it has \['body', 'id'\].*`feature`"
    ) as error:
        next(iterator)
    assert "element 1 (" in error.value.__notes__[0]
    with pytest.raises(PipelineError, match=r"The element is str: 'text', not a dict.*feature=None"):
        bpe.tokenize().map("text")


def test_what_is_no_text(bpe):
    with pytest.raises(PipelineError, match="takes texts, `str` or `bytes`; got int: 3 as the feature 'text'"):
        bpe.tokenize().map({"text": 3})
    with pytest.raises(PipelineError, match="got dict: .*; set `feature` to the name of the text"):
        bpe.tokenize(feature=None).map({"text": "a"})
    with pytest.raises(DataError, match=r"not UTF-8: byte 3 of 4 is 0xff, after b'ab'"):
        bpe.tokenize().map({"text": b"ab\xffc"})


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_says_how_to_install_it(made, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependency, match=rf"`{library}` is not installed.*{re.escape(install_command('text'))}"):
        made[library].tokenize()


def test_files_that_are_no_tokenizers(bpe, ranks, tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no tokenizer file 'missing/tokenizer.json'"):
        Tokenize("missing/tokenizer.json")
    (tmp_path / "notes.txt").write_text("Some notes.")
    with pytest.raises(
        DataError, match=r"notes.txt is not a tokenizer file: it starts with b'Some notes.'.*tokenizer.json"
    ):
        Tokenize(tmp_path / "notes.txt")
    (tmp_path / "broken.json").write_text('{"model": 3}')
    with pytest.raises(DataError, match="tokenizers cannot open tokenizers broken.json"):
        Tokenize(tmp_path / "broken.json").map({"text": "a"})
    (tmp_path / "broken.model").write_bytes(b"\nnothing")
    with pytest.raises(DataError, match="sentencepiece cannot open sentencepiece broken.model"):
        Tokenize(tmp_path / "broken.model").map({"text": "a"})
    (tmp_path / "broken.tiktoken").write_text("IQ== 0\nIg== one\n")
    with pytest.raises(DataError, match="Line 2 of .*broken.tiktoken is not a base64 token and its rank: b'Ig== one'"):
        Tokenize(tmp_path / "broken.tiktoken", pattern=PATTERN).map({"text": "a"})
    with pytest.raises(PipelineError, match=r"small.tiktoken has the ranks .*: also pass `pattern`"):
        Tokenize(ranks.path)
    with pytest.raises(PipelineError, match="`pattern` and `special_tokens` belong to a file of tiktoken ranks"):
        Tokenize(bpe.path, pattern=PATTERN)


def test_a_file_that_has_changed_is_not_taken_for_the_same(bpe, tmp_path):
    path = tmp_path / "tokenizer.json"
    shutil.copy(bpe.path, path)
    transform = Tokenize(path, dtype=np.int64)
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(DataError, match="tokenizer.json has changed since the pipeline was created"):
        transform.map({"text": "a"})


def test_settings_that_are_not_in_a_tokenizers_file_are_refused(bpe, pieces):
    processor = sentencepiece.SentencePieceProcessor(model_file=pieces.path, add_bos=True)
    with pytest.raises(PipelineError, match="has add_bos=True, which is not in its file"):
        Tokenize(processor)
    tokenizer = tokenizers.Tokenizer.from_file(bpe.path)
    tokenizer.encode_special_tokens = True
    with pytest.raises(PipelineError, match="has encode_special_tokens=True"):
        Tokenize(tokenizer)


def test_wrong_special_tokens_are_refused(bpe, ranks):
    with pytest.raises(PipelineError, match="allowed_special is for tiktoken"):
        bpe.tokenize(allowed_special="all")
    with pytest.raises(PipelineError, match='must be "all" or a collection of tokens; got the string \'<|endof'):
        ranks.tokenize(allowed_special=EOT)
    with pytest.raises(PipelineError, match=f"no special token '<other>'.* it has {re.escape(EOT)}"):
        ranks.tokenize(allowed_special={"<other>"}).map({"text": "x"})
    with pytest.raises(PipelineError, match="`bos` is the token 999999, but the tokens of .* end at"):
        bpe.tokenize(bos=999_999).map({"text": "x"})


def test_an_unknown_kind_of_tokenizer(bpe):
    with pytest.raises(
        PipelineError, match="`tokenizers`, tiktoken or sentencepiece, the path .*; got builtin_function"
    ):
        Tokenize(len)

    class Backwards:
        def pre_tokenize(self, pretokenized):
            pretokenized.split(lambda i, text: [text])

    tokenizer = tokenizers.Tokenizer.from_file(bpe.path)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.PreTokenizer.custom(Backwards())
    with pytest.raises(PipelineError, match="cannot be written to a file.*call it in a `map`"):
        Tokenize(tokenizer)


def test_a_tokenizer_that_draws_at_random(bpe):
    tokenizer = tokenizers.Tokenizer.from_file(bpe.path)
    tokenizer.model.dropout = 0.5
    with pytest.raises(PipelineError, match=r"is random \(dropout=0.5\).*`tokenizer.model.dropout = None`"):
        Tokenize(tokenizer).map({"text": "a"})


def test_arguments_that_make_no_sense(made):
    bpe = made["tokenizers"]
    for options, message in [
        ({"eos": "<none>"}, r"has no token '<none>'. Set `eos` to the name or the id"),
        ({"bos": True}, r"tokenizers tokenizer.json \w+ has no BOS token. Set `bos`"),
        ({"bos": -1}, "bos must be an int of at least 0; got -1"),
        ({"bos": 1, "max_length": 1}, "max_length=1 leaves no room for text"),
        ({"bos": 70000, "dtype": np.uint16}, "`bos` is the token 70000, too large for dtype=uint16. Use int32"),
        ({"max_length": 0}, "max_length must be a positive int; got 0"),
        ({"threads": 0}, "threads must be a positive int; got 0"),
        ({"dtype": np.float32}, "Tokens are integers, and dtype=float32 is not"),
        ({"keep_text": True, "output": None}, "keep_text=True needs a feature for the text and another one"),
    ]:
        with pytest.raises(PipelineError, match=message):
            bpe.tokenize(**options).map({"text": "a"})
    for tokenizer in made.values():
        with pytest.raises(PipelineError, match=r"go up to \d+, which dtype=uint8 cannot hold. Use int32"):
            tokenizer.tokenize(dtype=np.uint8).map({"text": "a"})
        with pytest.raises(PipelineError, match="has no token '<none>'"):
            tokenizer.tokenize(eos="<none>").map({"text": "a"})


@pytest.mark.parametrize("library", ["tokenizers", "sentencepiece"])
def test_half_a_surrogate_pair_is_an_error_of_its_element(made, library):
    """tiktoken replaces it by itself."""
    ds = MapDataset.source(["a", "b\ud800", "c"]).to_iter_dataset().map(made[library].tokenize(feature=None))
    iterator = iter(ds)
    next(iterator)
    with pytest.raises(DataError, match=r"half of a surrogate pair, .*: U\+D800 after 'b'. Replace it") as error:
        next(iterator)
    assert "element 1 (" in error.value.__notes__[0]


def test_importing_loads_no_library():
    done = run_script("""
        import sys, headrace.text
        print([name for name in ("tokenizers", "tiktoken", "sentencepiece") if name in sys.modules])
    """)
    assert done.stdout == "[]\n"
