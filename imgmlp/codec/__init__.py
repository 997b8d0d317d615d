"""Pictures in files: `encoder` and `decoder` on top, and `kinds`, what they compile for; a folder
for each codec below.

`mlp`, `latent` and `float_mlp` know nothing of each other; all use `training`, which knows none
of them, and `training` uses `bitstream`, which knows no engine. Uses the engine's public names only
and never touches OpenCL; import from the modules themselves, so that looking at a file needs no
engine. May import child, engine, output_files, source_digest, metadata, text, image.
"""
