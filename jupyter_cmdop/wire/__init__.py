"""Pure codecs: kernel messages as ZMQ frames and as websocket frames, and the frames of the keeper's link."""
