"""`TorchDataset` in Lightning: each epoch in an order of its own, and checkpoints that go on where they were saved."""

import logging

import pytest

from headrace import MapDataset

torch = pytest.importorskip("torch")
pytest.importorskip("tests.media.images.oracle")  # Lightning imports torchvision: this lets any wheel of it be imported
lightning = pytest.importorskip("lightning")
StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from headrace.device.torch import TorchDataset  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Lightning has many
    pytest.mark.usefixtures("quiet"),
]
LENGTH, EPOCHS = 3, 3


@pytest.fixture
def quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(lightning.LightningModule):
    """Notes which batches it has trained on."""

    def __init__(self, dataset=None):
        super().__init__()
        self.layer, self.seen, self.dataset = torch.nn.Linear(1, 1), [], dataset

    def on_train_epoch_start(self):
        if self.dataset is not None:
            self.dataset.set_epoch(self.current_epoch)

    def training_step(self, batch, index):
        self.seen.append(int(batch))
        return self.layer(batch.float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-6)


def batches():
    return MapDataset.range(LENGTH).seed(1).shuffle().batch(1)


def numbers(epochs):
    return [int(batch[0]) for batch in batches().repeat(epochs)]


def fit(loader, *, model=None, folder=None, resume=None, **options):
    """What a model has seen; with a folder, checkpoints after each step and each epoch."""
    callbacks = []
    if folder is not None:
        step = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
        end = ModelCheckpoint(folder, "end{epoch}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True)
        callbacks = [step, end]
    shown = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu", callbacks=callbacks, enable_checkpointing=bool(callbacks), **shown, **options
    )
    model = model or Model()
    trainer.fit(model, loader, ckpt_path=resume)
    return model.seen


WAYS = {
    "itself": (lambda: batches(), {"max_epochs": EPOCHS}),
    "no length": (
        lambda: batches().to_iter_dataset().filter(lambda x: True),
        {"max_epochs": EPOCHS, "limit_train_batches": LENGTH},
    ),
    "endless": (lambda: batches().repeat(), {"max_epochs": 1, "limit_train_batches": LENGTH * EPOCHS}),
}


@pytest.mark.parametrize("name", WAYS)
def test_every_checkpoint_goes_on_with_the_next_batch(name, tmp_path):
    build, options = WAYS[name]
    whole = fit(TorchDataset(build()), folder=tmp_path, **options)
    assert whole == numbers(EPOCHS)
    for path in sorted(tmp_path.iterdir()):
        step = torch.load(path, weights_only=False)["global_step"]
        assert fit(TorchDataset(build()), resume=path, **options) == whole[step:], path.name


def test_a_stateful_loader_goes_on_with_the_next_batch(tmp_path):
    """But for checkpoints after the last step of an epoch, before its end: Lightning does not say what it goes on with."""

    def train(**options):
        dataset = TorchDataset(batches())
        loader = StatefulDataLoader(dataset, batch_size=None)
        return fit(loader, model=Model(dataset), max_epochs=EPOCHS, **options)

    whole = train(folder=tmp_path)
    assert whole == numbers(EPOCHS)
    for path in sorted(tmp_path.iterdir()):
        step = torch.load(path, weights_only=False)["global_step"]
        if step % LENGTH == 0 and "end" not in path.name:
            continue
        assert train(resume=path) == whole[step:], path.name


def test_a_plain_loader_gives_the_next_epoch_each_time():
    loader = torch.utils.data.DataLoader(TorchDataset(batches()), batch_size=None)
    assert fit(loader, max_epochs=EPOCHS) == numbers(EPOCHS)


def test_epochs_can_be_all_the_same():
    dataset = TorchDataset(batches(), advance_epochs=False)
    assert fit(dataset, max_epochs=2) == 2 * numbers(1)
