"""Picture files of strangers, read with Pillow: within limits, and rightly, or refused.

Read `files` first, which has the others do their part, and `refusals`, which has what is told. Of
bytes, before Pillow sees them: `structure` knows how formats are divided, `icons` rebuilds those of
Windows, `parsing_limits` bounds what is beside the pixels, `png` looks at a PNG's chunks and rows;
`shared_stream` is what Pillow reads from. Of an open picture: `frames` chooses one, `misread` mends
or refuses what Pillow takes for something else, `claimed_size` refuses what is far smaller than it
says, `completeness` what lacks pixels; `colours` and `bit_depth` tell what is not kept,
`library_messages` what libtiff complains of, and `tiff_exif` is EXIF data among a TIFF's own tags.
`conversion` is to 8 bits. `imgmlp.image` is the face of all this; others ask `files` only for the
endings of pictures' names and for how many pixels there are. May import metadata, text.
"""
