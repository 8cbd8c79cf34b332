//! Placeholder of the queue model; see the next commit.
