{{/* The patch of the operator's Deployment that puts the plugin into its pod. */}}
{{- define "scale-to-zero.operatorPatch" -}}
{{- $spec := (.Files.Get "files/operator.yaml" | fromYaml).spec -}}
{{- $plugin := first $spec.template.spec.initContainers -}}
{{- $_ := set $plugin "image" (include "scale-to-zero.image" .) -}}
{{- $_ := set $plugin "imagePullPolicy" .Values.image.pullPolicy -}}
{{- $_ := set $plugin "resources" .Values.resources -}}
{{- $settings := include "scale-to-zero.settings" . | fromYamlArray -}}
{{- $named := list -}}
{{- range $settings }}{{ $named = append $named .name }}{{ end -}}
{{- range $plugin.env -}}
{{- if not (has .name $named) }}{{ $settings = append $settings . }}{{ end -}}
{{- end -}}
{{- with .Values.additionalEnv }}{{ $settings = concat $settings (tpl (toYaml .) $ | fromYamlArray) }}{{ end -}}
{{- $_ := set $plugin "env" $settings -}}
{{- $_ := set $plugin "args" (concat $plugin.args .Values.additionalArgs) -}}
{{- if .Values.openshift -}}
{{- $_ := set $plugin "securityContext" (omit $plugin.securityContext "runAsUser" "runAsGroup") -}}
{{- end -}}
{{- $_ := set $spec.template.spec "terminationGracePeriodSeconds" (add 65 .Values.gateway.drainSeconds) -}}
{{- with .Values.imagePullSecrets -}}
{{- $_ := set $spec.template.spec "imagePullSecrets" . -}}
{{- end -}}
{{- toYaml (dict "spec" $spec) -}}
{{- end -}}
