//go:build build

// Package build names what is built of this module: the real kube-apiserver, beside which davit works on one etcd, and with
// kube-scheduler and kube-controller-manager the cluster that the benchmark scheduler_perf compares davit with.
//
//	go build -trimpath -o ../../.cache/kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
//	go build -trimpath -o ../../.cache/kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler
//	go build -trimpath -o ../../.cache/kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager
package build

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
