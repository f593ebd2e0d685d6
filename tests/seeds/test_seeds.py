"""The documents that teach the API run with Headrace, block after block.

They lie in shared/seeds beside the repository and are not part of it; without that folder there is nothing to run.
`python -m tests.seeds.run 001` runs one of them by hand.
"""

import importlib.util
from pathlib import Path

import pytest

from tests.seeds import claims, repairs, run
from tests.seeds.documents import DOCUMENTS, FOLDER, Document, blocks


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # its package is missing
        return True


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not here")
@pytest.mark.timeout(2 * run.TIME_LIMIT_S + 10)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_all_blocks_of_a_document_run_and_what_is_said_of_them_holds(document: Document, tmp_path: Path):
    missing = [module for module in document.modules if _missing(module)]
    missing += [str(folder) for folder in document.folders if not folder.is_dir()]
    if missing:
        pytest.skip(f"document {document.name} needs {', '.join(missing)}")
    outcomes = run.run(document.name, str(tmp_path))
    assert list(outcomes) == [block.number for block in blocks(document.name)]
    for outcome in outcomes.values():
        print(*outcome.repairs, sep="\n")
    errors = [f"block {number}: {outcome.error}" for number, outcome in outcomes.items() if outcome.error]
    if errors:
        pytest.fail("\n".join(errors), pytrace=False)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is not here")
def test_every_repair_and_every_claim_has_its_block():
    found = {(block.document, block.number): block for document in DOCUMENTS for block in blocks(document.name)}
    for repair in repairs.REPAIRS:
        code, made = repairs.repaired(found[repair.document, repair.block])
        assert repair in made
        compile(code, "block", "exec")
    assert set(claims.claims()) <= set(found)


def test_a_repair_that_does_not_apply_is_an_error():
    repair = repairs.Repair("000", 1, "import x", "import y", "for a test")
    assert repairs.apply(repair, "import x\n") == "import y\n"
    with pytest.raises(repairs.RepairError, match=r"the document has changed: 000, block 1: 'import x' -> 'import y'"):
        repairs.apply(repair, "import z\n")
