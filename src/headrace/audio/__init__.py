"""Operations on audio, encoded or in files: decoding, clips, one sampling rate and one channel.

Audio is an array of float32 from -1 to 1, with the axes time and channel; of one channel, with `mono=True`, time alone.
"""

from headrace.audio.decode import Decode as Decode
from headrace.audio.decode import RandomClip as RandomClip
from headrace.audio.decode import seconds_of as seconds_of
