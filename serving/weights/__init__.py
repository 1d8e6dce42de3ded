"""How do weights reach a replica? Shared on its node, else fetched from another node, else loaded.

    replica ─► source.local_model ─┬─ the directory is on this node: used as it is, read ahead
                                   ├─ another node has it: fetch.fetch, file by file, verified
                                   └─ a hub id nobody has yet: one node downloads, the others wait

A node that holds a model, or files of it already, is a source for the others (`store`).
"""
