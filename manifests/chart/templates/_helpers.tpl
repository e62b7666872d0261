{{/* The operator's namespace, in which everything is. */}}
{{- define "scale-to-zero.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* The labels of every object. */}}
{{- define "scale-to-zero.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* The metadata of an object in the operator's namespace: (list root name labels). */}}
{{- define "scale-to-zero.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ include "scale-to-zero.namespace" $root }}
{{ include "scale-to-zero.marks" (list $root (index . 2)) }}
{{- end -}}

{{/* Labels and annotations: (list root labels). */}}
{{- define "scale-to-zero.marks" -}}
{{- $root := index . 0 -}}
labels:
  {{- include "scale-to-zero.labels" $root | nindent 2 }}
  {{- with index . 1 }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "scale-to-zero.serviceAccountName" -}}
{{- if .Values.operatorSocket.enabled -}}
{{- .Values.operatorSocket.serviceAccountName -}}
{{- else if .Values.serviceAccount.create -}}
{{- default "cnpg-scale-to-zero-plugin" .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The name of the bindings, which with the plugin in the operator's pod are the operator's. */}}
{{- define "scale-to-zero.bindingName" -}}
{{- ternary "cnpg-scale-to-zero-operator" "cnpg-scale-to-zero-plugin" .Values.operatorSocket.enabled -}}
{{- end -}}

{{/* The reference of an image: (list root image). */}}
{{- define "scale-to-zero.reference" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $registry := required "image.registry is empty: name the registry that has the images, such as registry.example.org/team" (default $root.Values.image.registry $image.registry) -}}
{{- printf "%s/%s:%s" $registry $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "scale-to-zero.image" -}}
{{- include "scale-to-zero.reference" (list . .Values.image) -}}
{{- end -}}

{{- define "scale-to-zero.sidecarImage" -}}
{{- include "scale-to-zero.reference" (list . .Values.sidecarImage) -}}
{{- end -}}

{{/* The security context of the pods, as the platform takes it. */}}
{{- define "scale-to-zero.podSecurityContext" -}}
{{- $context := .Values.podSecurityContext -}}
{{- if .Values.openshift -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{/*
The objects of a file that the kustomize components have too, with this release's namespace, labels and annotations:
(dict "root" . "file" "files/..." "labels" more "replace" (dict old new)). Expressions of other template languages in it stay as they are.
*/}}
{{- define "scale-to-zero.objects" -}}
{{- $root := .root -}}
{{- $namespace := include "scale-to-zero.namespace" $root -}}
{{- $more := .labels -}}
{{- $text := $root.Files.Get .file | replace "cnpg-system" $namespace | replace "postgresql.cnpg.io" $root.Values.rbac.cnpgGroup -}}
{{- range $old, $new := .replace -}}
{{- $text = replace $old $new $text -}}
{{- end -}}
{{- range splitList "\n---\n" $text }}
{{- $object := fromYaml . -}}
{{- if $object.Error }}{{ fail (printf "a part of %s cannot be read: %s" $.file $object.Error) }}{{ end -}}
{{- $metadata := $object.metadata -}}
{{- if not (regexMatch "^(Cluster|ValidatingAdmission|MutatingAdmission)" $object.kind) -}}
{{- $_ := set $metadata "namespace" $namespace -}}
{{- end -}}
{{- $_ := set $metadata "labels" (merge (dict) (default (dict) $more) (default (dict) $metadata.labels) (include "scale-to-zero.labels" $root | fromYaml)) -}}
{{- with $root.Values.commonAnnotations -}}
{{- $_ := set $metadata "annotations" (merge (dict) (default (dict) $metadata.annotations) .) -}}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end -}}
