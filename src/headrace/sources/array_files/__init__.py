"""Files of arrays as sources: `.npy`, `.npz`, IDX (the format of MNIST), HDF5 and Zarr; element `i` is row `i` of each.

Arrays of one source have one leading length. What NumPy can map is mapped; IDX and `.npz` files are read into memory,
where workers share one copy; HDF5 and Zarr stay in their files, and of a block each chunk is read once.
"""

from headrace.sources.array_files.hdf5 import Hdf5DataSource as Hdf5DataSource
from headrace.sources.array_files.whole import IdxDataSource as IdxDataSource
from headrace.sources.array_files.whole import NpyDataSource as NpyDataSource
from headrace.sources.array_files.whole import NpzDataSource as NpzDataSource
from headrace.sources.array_files.zarr import ZarrDataSource as ZarrDataSource
