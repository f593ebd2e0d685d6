"""torchvision, against which operations are compared; tests that import this are skipped without it."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL.Image")


def _import():
    """The wheel of torchvision for GPUs, beside a torch for CPUs, lacks its own operators; transforms need none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torchvision
        except ImportError:
            pytest.skip("torchvision is not installed", allow_module_level=True)
        except RuntimeError:
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            import torchvision
            import torchvision.transforms.v2

            return torchvision, library  # it must outlive the module
        import torchvision.transforms.v2

        return torchvision, None


torchvision, _library = _import()
v2 = torchvision.transforms.v2
functional = torchvision.transforms.v2.functional


def tensor(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def array(image):
    return image.permute(1, 2, 0).numpy()


def apply(transform, image):
    """What a transform or function of torchvision makes of an array."""
    return array(transform(tensor(image)))
