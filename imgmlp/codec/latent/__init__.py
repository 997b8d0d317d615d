"""The latent codec: grids of whole numbers, and the small networks that read them."""
