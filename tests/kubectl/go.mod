module davit.dev/tests/kubectl

go 1.26.0

require (
	k8s.io/component-base v0.36.6
	k8s.io/kubectl v0.36.6
)
