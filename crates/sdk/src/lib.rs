//! Libraries for authors of device plugins and podresources clients.
