"""Nodes to simpler Nodes, to a Procedure, to a better Procedure.

Imports ir, and oracle to fold constants by the reference's meaning.
"""
