//! The gRPC interfaces of a node, as Rust types, clients and servers, and the unix sockets
//! they are spoken on.
//!
//! The `.proto` files live in `protos/`; `cargo xtask proto` regenerates `src/generated`
//! from them. [`unix`] holds the one kind of server and client every interface here uses.

#![forbid(unsafe_code)]

pub mod csi;
pub mod unix;

/// Device plugin API: `Registration` is served by the node agent, `DevicePlugin` by plugins.
///
/// See <https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/>.
pub mod deviceplugin {
    /// Version `v1beta1`, the only one that is served.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1beta1 {
        include!("generated/deviceplugin/v1beta1.rs");

        /// Version string a plugin sends in `RegisterRequest.version` and announces in `supported_versions`.
        pub const VERSION: &str = "v1beta1";
        /// [`Device::health`] of a usable device; every other text means unusable.
        pub const HEALTHY: &str = "Healthy";
        /// [`Device::health`] of an unusable device.
        pub const UNHEALTHY: &str = "Unhealthy";
        /// File name of the agent's registration socket in the `device-plugins` folder.
        pub const REGISTRATION_SOCKET: &str = "kubelet.sock";
    }
}

/// Plugin registration API: served by plugins in `plugins_registry`, called by the node agent (KEP-3257 and earlier).
pub mod pluginregistration {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1 {
        include!("generated/pluginregistration/pluginregistration.rs");

        /// [`PluginInfo::type`](PluginInfo) of a device plugin.
        pub const DEVICE_PLUGIN: &str = "DevicePlugin";
        /// [`PluginInfo::type`](PluginInfo) of a CSI driver.
        pub const CSI_PLUGIN: &str = "CSIPlugin";
        /// [`PluginInfo::type`](PluginInfo) of a DRA driver.
        pub const DRA_PLUGIN: &str = "DRAPlugin";
    }
}

/// Pod resources API: which pod holds which devices (KEP-606, KEP-2043, KEP-3695).
pub mod podresources {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1 {
        include!("generated/podresources/v1.rs");
    }

    /// The first form, kept for old monitors.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1alpha1 {
        include!("generated/podresources/v1alpha1.rs");
    }
}

/// The API of etcd, as far as the store uses it.
///
/// See <https://etcd.io/docs/v3.6/dev-guide/api_reference_v3/>.
pub mod etcd {
    /// Keys, values and what happens to them.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod mvccpb {
        include!("generated/etcd/mvccpb.rs");
    }

    /// The calls.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod etcdserverpb {
        include!("generated/etcd/etcdserverpb.rs");
    }

    /// Shows a pair without its value, which may be anybody's secret.
    fn shown(
        f: &mut std::fmt::Formatter<'_>,
        name: &str,
        key: &[u8],
        value: &[u8],
    ) -> std::fmt::Result {
        f.debug_struct(name)
            .field("key", &String::from_utf8_lossy(key))
            .field("value", &format_args!("{} bytes", value.len()))
            .finish_non_exhaustive()
    }

    impl std::fmt::Debug for mvccpb::KeyValue {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            shown(f, "KeyValue", &self.key, &self.value)
        }
    }

    impl std::fmt::Debug for etcdserverpb::PutRequest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            shown(f, "PutRequest", &self.key, &self.value)
        }
    }
}

/// Pods API: the pods of a node from its agent (KEP-4188).
pub mod pods {
    /// Version `v1alpha1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1alpha1 {
        include!("generated/pods/v1alpha1.rs");
    }
}

/// davit's additions to the interfaces of the node agent.
pub mod davit {
    /// List of podresources as a push.
    pub mod podresources {
        /// Version 1.
        #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
        pub mod v1 {
            include!("generated/podresources/davit.podresources.v1.rs");
        }
    }
}

/// Generated code of davit's own services names the messages of other packages by their place
/// from the root of the packages.
pub use podresources::v1;

/// Dynamic resource allocation on the node: served by DRA drivers, called by the node agent (KEP-4381).
pub mod dra {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1 {
        include!("generated/dra/k8s.io.kubelet.pkg.apis.dra.v1.rs");

        /// Name of the service in `supported_versions`.
        pub const SERVICE: &str = "v1.DRAPlugin";
    }

    /// The form of 1.32 and 1.33: [`v1`] without share IDs.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1beta1 {
        include!("generated/dra/k8s.io.kubelet.pkg.apis.dra.v1beta1.rs");

        /// Name of the service in `supported_versions`.
        pub const SERVICE: &str = "v1beta1.DRAPlugin";
    }
}

/// Health of the devices of DRA drivers, as a stream served by them (KEP-4680).
pub mod drahealth {
    /// Version 1.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1 {
        include!("generated/drahealth/v1.rs");

        /// Name of the service in `supported_versions`.
        pub const SERVICE: &str = "v1.DRAResourceHealth";
    }

    /// The same messages under the first name.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1alpha1 {
        include!("generated/drahealth/v1alpha1.rs");

        /// Name of the service in `supported_versions`.
        pub const SERVICE: &str = "v1alpha1.DRAResourceHealth";
    }
}

/// Node plugins of classic DRA drivers, one claim a call (KEP-3063).
pub mod draclassic {
    /// Kubernetes 1.26.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1alpha1 {
        include!("generated/draclassic/v1alpha1.rs");

        /// The only entry of `supported_versions` of classic drivers, those of 1.27 included.
        pub const VERSION: &str = "1.0.0";
    }

    /// Kubernetes 1.27.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1alpha2 {
        include!("generated/draclassic/v1alpha2.rs");
    }
}

/// Key management plugins of encryption at rest (KEP-3299).
pub mod kms {
    /// Version 2, the only one that is served.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v2 {
        include!("generated/kms/v2.rs");
    }

    /// What the API server stores.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod stored {
        include!("generated/kms/kmsstored.rs");
    }
}

/// Container runtime interface.
pub mod cri {
    /// Version 1, protobuf package `runtime.v1`.
    #[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
    pub mod v1 {
        include!("generated/cri/runtime.v1.rs");

        // Registry secrets must not reach a log through a debug print of a request.
        impl std::fmt::Debug for AuthConfig {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("AuthConfig")
                    .field("username", &self.username)
                    .field("server_address", &self.server_address)
                    .finish_non_exhaustive()
            }
        }

        impl KeyValue {
            /// An environment variable of a container.
            pub fn new(key: impl Into<String>, value: impl Into<String>) -> Self {
                let value: String = value.into();
                Self {
                    key: key.into(),
                    value: value.into_bytes(),
                }
            }

            /// The value as text; bytes that are not UTF-8 become replacement characters.
            pub fn text(&self) -> std::borrow::Cow<'_, str> {
                String::from_utf8_lossy(&self.value)
            }
        }
    }
}
