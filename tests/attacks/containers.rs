//! Processes of containers: what they see and reach of the host and of one another.
