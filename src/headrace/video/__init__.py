"""Operations on video, encoded or in files: decoding, clips, and some frames of many.

A video is an array of uint8 with the axes frame, height, width and channel (red, green, blue).
"""

from headrace.video.decode import Decode as Decode
from headrace.video.decode import RandomClip as RandomClip
from headrace.video.decode import seconds_of as seconds_of
