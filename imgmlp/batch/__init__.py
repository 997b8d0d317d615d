"""Many files: found, planned, done by one process or by one for each device, and remembered.

`find` and `plan` decide what there is to do, `encode` and `stored` do it with one file, `pool` has
many done, `journal` remembers. What is shown of it is others' affair. May import child, codec,
codec.decoder, codec.encoder, ending, engine, facts, image, image_io, interrupt, output_files,
report, text.
"""
