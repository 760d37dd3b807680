//! All layers in one stack.
