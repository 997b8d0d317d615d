"""Reading of untrusted picture files with Pillow: within limits, and correctly or not at all.

`files` is the entry point and calls the other modules; `refusals` has the error messages. Before
Pillow opens a file, `structure` iterates over the parts of container formats, `icons` rebuilds
those of Windows, `parsing_limits` bounds what is beside the pixels, and `png` checks a PNG's chunks
and rows; Pillow then reads from a `shared_stream`. Of an open image, `frames` chooses one frame,
`pillow_faults` corrects or refuses what Pillow misreads, `claimed_size` refuses files that are far
smaller than they declare, and `completeness` those that lack pixels. `colours` and `bit_depth`
report what is not kept, `library_messages` captures libtiff's messages, `tiff_exif` converts
between EXIF data and a TIFF's own tags, and `conversion` makes 8-bit samples. Other packages use
`imgmlp.image`, and of `files` only the file name extensions and the number of pixels. May import
metadata, text.
"""
