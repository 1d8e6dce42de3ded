"""What happens to a prompt that does not fit? Policies that shorten it, measured in its tokens.

    choice (which policy) → draft (body into pieces) → policy (what stays) → fitting (until it fits)

Policies are pure functions over pieces of tokens: they know no HTTP, no model and no clock.
"""
