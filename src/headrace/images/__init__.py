"""Operations on images, encoded or not: decoding, crops, sizes, flips, colours, and mixes of batches.

Names and arguments are those of torchvision.transforms.v2. Images are arrays of height, width and channel.
"""

from headrace.images.augment import RandAugment as RandAugment
from headrace.images.batches import CutMix as CutMix
from headrace.images.batches import MixUp as MixUp
from headrace.images.color import ColorJitter as ColorJitter
from headrace.images.color import Normalize as Normalize
from headrace.images.compose import Compose as Compose
from headrace.images.crops import CenterCrop as CenterCrop
from headrace.images.crops import RandomCrop as RandomCrop
from headrace.images.crops import RandomHorizontalFlip as RandomHorizontalFlip
from headrace.images.crops import RandomResizedCrop as RandomResizedCrop
from headrace.images.crops import Resize as Resize
from headrace.images.decode import Decode as Decode
from headrace.images.geometry import Crop as Crop
