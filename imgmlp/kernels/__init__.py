"""Hand-written OpenCL C, as *.cl files: what the generator cannot express.

codegen/render.py puts the files that a program needs in front of its generated kernels, after the
definitions of the sizes that they depend on: `scalar` always, `vectors` on CPUs, and the others if
they are called. device/building.py compiles with `declarations.cl` in place of the driver's header
where it can. codec/latent/latents_kernel.py compiles `latents.cl`, a kernel of its own.

May import nothing.
"""
