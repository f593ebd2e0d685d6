"""Images: folders of them as sources, and their decoding."""

from headrace.sources.images.decoding import decode_image as decode_image
from headrace.sources.images.folder import ImageFolderDataSource as ImageFolderDataSource
