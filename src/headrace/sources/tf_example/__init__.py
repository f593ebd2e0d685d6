"""`tf.train.Example` and `SequenceExample`, parsed to NumPy and written without TensorFlow.

An `Example` is a protocol buffer: a map from names to lists of floats, of ints, or of bytes.
"""

from headrace.sources.tf_example.alone import is_example as is_example
from headrace.sources.tf_example.alone import parse_example as parse_example
from headrace.sources.tf_example.alone import parse_sequence_example as parse_sequence_example
from headrace.sources.tf_example.encode import encode_example as encode_example
from headrace.sources.tf_example.feature import Feature as Feature
from headrace.sources.tf_example.parser import ExampleDataSource as ExampleDataSource
from headrace.sources.tf_example.parser import ExampleParser as ExampleParser
