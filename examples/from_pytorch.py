"""For PyTorch users: what replaces each part of PyTorch's DataLoader, and how to train a PyTorch model."""

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

from headrace import DataLoader
from headrace.data import digits
from headrace.device.torch import TorchDataset
from headrace.samplers import IndexSampler
from headrace.sharding import ShardOptions
from headrace.transforms import Batch, RandomMap


# Dataset -> data_source. A PyTorch Dataset is a source without changes; here it only reads.
class Digits(Dataset):
    def __init__(self):
        self.arrays = digits()

    def __len__(self) -> int:
        return len(self.arrays["label"])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {name: array[index] for name, array in self.arrays.items()}


# transform= -> operations. A random operation gets a generator for each record, so workers need no seeds.
def to_float(example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"image": example["image"].reshape(-1).astype(np.float32) / 16, "label": example["label"].astype(np.int64)}


class RandomScale(RandomMap):
    def random_map(self, element: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {**element, "image": element["image"] * np.float32(rng.uniform(0.8, 1.2))}


# shuffle=True -> a sampler with a seed. DistributedSampler -> shard_options. num_workers -> worker_count.
def make_loader(worker_count: int, shard: int = 0, num_shards: int = 1) -> DataLoader:
    options = ShardOptions(shard, num_shards, drop_remainder=True)
    return DataLoader(
        data_source=Digits(),
        sampler=IndexSampler(1797, options, shuffle=True, num_epochs=10, seed=42),
        operations=[to_float, RandomScale(), Batch(64, drop_remainder=True)],
        worker_count=worker_count,
    )


first = next(iter(make_loader(worker_count=0)))
print(f"a batch: {', '.join(f'{name} {array.dtype}{list(array.shape)}' for name, array in first.items())}")
halves = [sum(1 for _ in make_loader(0, shard, 2)) for shard in range(2)]
print(f"batches for each of two processes: {halves}")

# Training with PyTorch: batches become tensors without a copy. They are batched already, so pass batch_size=None.
torch.manual_seed(0)
torch.set_num_threads(1)  # the network is too small to benefit from more
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
dataset = TorchDataset(make_loader(worker_count=2))
steps, state, rest = 0, {}, []
for batch in TorchLoader(dataset, batch_size=None):
    loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
    if steps == 100:
        state = dataset.state_dict()  # in the middle of an epoch; save it with the model's state
    elif steps > 100:
        rest.append(batch["label"])
pixels = torch.from_numpy(digits()["image"].reshape(1797, 64) / np.float32(16))
accuracy = np.mean(model(pixels).argmax(dim=1).numpy() == digits()["label"])
print(f"{steps} steps from 2 workers, training accuracy {accuracy:.1%}")

# Resume from the state without workers: batches and states are the same with any number of workers.
again = TorchDataset(make_loader(worker_count=0))
again.load_state_dict(state)
labels = [batch["label"] for batch in again]
same = len(labels) == len(rest) and all(map(torch.equal, labels, rest))
print(f"restored at step 100, the remaining batches are the same: {same}")
