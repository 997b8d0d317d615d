"""The latent codec: grids of whole numbers, two small networks, one picture."""
