"""Files of arrays as sources: `.npy`, `.npz`, IDX (the format of MNIST), HDF5 and Zarr; element `i` is row `i` of each.

The arrays of a source have the same first dimension. `.npy` files are mapped; IDX and `.npz` files are read into
memory, where workers share one copy; HDF5 and Zarr are read from their files, each chunk once for a block.
"""

from headrace.sources.array_files.hdf5 import Hdf5DataSource as Hdf5DataSource
from headrace.sources.array_files.whole import IdxDataSource as IdxDataSource
from headrace.sources.array_files.whole import NpyDataSource as NpyDataSource
from headrace.sources.array_files.whole import NpzDataSource as NpzDataSource
from headrace.sources.array_files.zarr import ZarrDataSource as ZarrDataSource
