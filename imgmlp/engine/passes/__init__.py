"""Nodes to simpler Nodes, to a Procedure, to a better Procedure.

Constants are folded by the reference's meaning. May import oracle, ir.
"""
