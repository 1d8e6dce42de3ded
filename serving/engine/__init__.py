"""The engine side: a vLLM engine, its processes, and the Serve replica around it.

The only package that imports vLLM or Ray's LLM server, and only inside functions: the import
takes seconds, and the gateway, the controller and the command line never need it.
"""
